#include "gguf/writer.h"

#include <optional>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "gguf/little_endian.h"
#include "gguf/split.h"

namespace specdec {
namespace {

using gguf::append;
using gguf::append_string;

constexpr std::uint32_t kVersion = 3;
constexpr std::string_view kAlignmentKey = "general.alignment";

std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

void append_entry(std::string& out, const TensorPlan& tensor, std::size_t offset) {
  append_string(out, tensor.name);
  append(out, static_cast<std::uint32_t>(tensor.shape.size()));
  for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) {
    append<std::uint64_t>(out, *dim);
  }
  append(out, tensor.type_number);
  append<std::uint64_t>(out, offset);
}

std::size_t entry_bytes(const TensorPlan& tensor) {
  std::string out;
  append_entry(out, tensor, 0);
  return out.size();
}

}  // namespace

TensorPlan plan_tensor(std::string name, std::string_view type, std::vector<std::size_t> shape) {
  const std::optional<std::uint32_t> number = gguf_type_number(type);
  if (!number || shape.empty()) {
    throw InvalidArgument(str("tensor ", quoted(name), " of type ", quoted(type), " and ",
                              shape.size(), " dimensions cannot be written"));
  }
  const std::size_t cols = shape.back();
  std::size_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  std::size_t bytes = plain_type_bytes(*number) * cols;
  if (const auto dtype = dtype_from_gguf(*number)) {
    const std::size_t block = dtype_info(*dtype).block_size;
    if (cols % block != 0) {
      throw InvalidArgument(str("tensor ", quoted(name), " has rows of ", cols,
                                " values, which are no whole blocks of ", type));
    }
    bytes = row_bytes(*dtype, cols);
  }
  return {std::move(name), *number, std::move(shape), rows * bytes};
}

GgufWriter::GgufWriter(const std::string& path, MetadataWriter metadata,
                       std::vector<TensorPlan> tensors, std::size_t alignment,
                       std::uint64_t max_bytes)
    : path_(path),
      metadata_(std::move(metadata)),
      tensors_(std::move(tensors)),
      alignment_(alignment) {
  for (const std::string_view key : {kSplitNumberKey, kSplitCountKey, kSplitTensorsKey}) {
    metadata_.remove(key);
  }
  if (alignment_ != kUsualAlignment) {
    metadata_.set_u32(kAlignmentKey, static_cast<std::uint32_t>(alignment_));
  }
  plan_parts(max_bytes);
  for (const std::string& one : paths()) require_output_path(one);  // before any work
  begin_part();
}

// Fills each part in turn.
void GgufWriter::plan_parts(std::uint64_t max_bytes) {
  // A little more than a header and the keys of a part need.
  constexpr std::size_t kPartHead = 256;
  std::size_t head = kPartHead + metadata_.bytes().size(), data = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const std::size_t entry = entry_bytes(tensors_[i]);
    const std::size_t bytes = aligned(tensors_[i].bytes, alignment_);
    const std::size_t size = aligned(head + entry, alignment_) + data + bytes;
    if (max_bytes > 0 && i > first && size > max_bytes) {
      ends_.push_back(i);
      first = i;
      head = kPartHead;
      data = 0;
    }
    head += entry;
    data += bytes;
  }
  ends_.push_back(tensors_.size());
  if (ends_.size() > kMaxParts) {
    throw InvalidArgument(str("files of ", max_bytes, " bytes would make ", ends_.size(),
                              " parts, more than the ", kMaxParts, " of the format"));
  }
}

MetadataWriter GgufWriter::metadata_of(std::size_t part) const {
  MetadataWriter metadata;
  if (part == 0) {
    metadata = metadata_;
  } else if (alignment_ != kUsualAlignment) {
    metadata.set_u32(kAlignmentKey, static_cast<std::uint32_t>(alignment_));
  }
  if (ends_.size() > 1) {
    metadata.set_u16(kSplitNumberKey, static_cast<std::uint16_t>(part));
    metadata.set_u16(kSplitCountKey, static_cast<std::uint16_t>(ends_.size()));
    metadata.set_i32(kSplitTensorsKey, static_cast<std::int32_t>(tensors_.size()));
  }
  return metadata;
}

std::string GgufWriter::head_of(std::size_t part) const {
  const std::size_t first = part == 0 ? 0 : ends_[part - 1];
  const MetadataWriter metadata = metadata_of(part);
  std::string head = "GGUF";
  append(head, kVersion);
  append<std::uint64_t>(head, ends_[part] - first);
  append<std::uint64_t>(head, metadata.count());
  head += metadata.bytes();
  std::size_t offset = 0;
  for (std::size_t i = first; i < ends_[part]; ++i) {
    append_entry(head, tensors_[i], offset);
    offset += aligned(tensors_[i].bytes, alignment_);
  }
  return head;
}

std::string GgufWriter::path_of(std::size_t part) const {
  constexpr std::string_view kEnd = ".gguf";
  if (ends_.size() == 1) return path_;
  const bool named = path_.ends_with(kEnd);
  const std::string prefix = named ? path_.substr(0, path_.size() - kEnd.size()) : path_;
  return split_path(prefix, part + 1, ends_.size());
}

std::vector<std::string> GgufWriter::paths() const {
  std::vector<std::string> all;
  for (std::size_t part = 0; part < ends_.size(); ++part) all.push_back(path_of(part));
  return all;
}

void GgufWriter::begin_part() {
  const std::size_t part = files_.size();
  files_.push_back(std::make_unique<OutputFile>(path_of(part)));
  const std::string head = head_of(part);
  files_.back()->write(head.data(), head.size());
  pad();
}

void GgufWriter::pad() {
  const auto written = static_cast<std::size_t>(files_.back()->written());
  files_.back()->write_zeros(aligned(written, alignment_) - written);
}

void GgufWriter::write(const std::byte* data, std::size_t bytes) {
  SPECDEC_CHECK(current_ < tensors_.size(), bytes, " bytes after the last tensor");
  const std::size_t size = tensors_[current_].bytes;
  SPECDEC_CHECK(bytes <= size - done_, bytes, " bytes for tensor ", current_);
  files_.back()->write(data, bytes);
  done_ += bytes;
  if (done_ < size) return;
  pad();
  ++current_;
  done_ = 0;
  if (current_ < tensors_.size() && current_ == ends_[files_.size() - 1]) {
    files_.back()->complete();
    begin_part();
  }
}

std::uint64_t GgufWriter::finish() {
  SPECDEC_CHECK(current_ == tensors_.size(), current_, " of ", tensors_.size(), " tensors written");
  files_.back()->complete();
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    bytes += files_[i]->written();
    try {
      files_[i]->commit();
    } catch (const OutputError&) {
      for (std::size_t named = 0; named < i; ++named) files_[named]->revoke();
      throw;
    }
  }
  return bytes;
}

}  // namespace specdec
