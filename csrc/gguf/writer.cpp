#include "gguf/writer.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::uint32_t kVersion = 3;

template <typename T>
void append(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& out, std::string_view text) {
  append<std::uint64_t>(out, text.size());
  out += text;
}

// Bytes of a value's data as it lies in the file.
std::size_t data_bytes(const MetadataValue& value) {
  if (value.type != MetadataType::kString) return value.count * metadata_type_bytes(value.type);
  std::size_t bytes = 0;
  for (const std::string_view text : value.strings()) bytes += sizeof(std::uint64_t) + text.size();
  return bytes;
}

std::string entry_bytes(const MetadataValue& value) {
  std::string out;
  append_string(out, value.key);
  if (value.is_array) {
    append(out, MetadataType::kArray);
    append(out, value.type);
    append<std::uint64_t>(out, value.count);
  } else {
    append(out, value.type);
  }
  return out.append(reinterpret_cast<const char*>(value.data), data_bytes(value));
}

std::size_t aligned(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

std::string directory_bytes(const std::vector<TensorPlan>& tensors, std::size_t alignment) {
  std::string out;
  std::size_t offset = 0;
  for (const TensorPlan& tensor : tensors) {
    append_string(out, tensor.name);
    append(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto dim = tensor.shape.rbegin(); dim != tensor.shape.rend(); ++dim) {
      append<std::uint64_t>(out, *dim);
    }
    append(out, tensor.type_number);
    append<std::uint64_t>(out, offset);
    offset = aligned(offset + tensor.bytes, alignment);
  }
  return out;
}

}  // namespace

void MetadataWriter::copy(const Metadata& source) {
  for (const MetadataValue& value : source.values()) {
    entries_.push_back({std::string(value.key), entry_bytes(value)});
  }
}

void MetadataWriter::set_u32(std::string_view key, std::uint32_t value) {
  std::string bytes;
  append_string(bytes, key);
  append(bytes, MetadataType::kU32);
  append(bytes, value);
  for (Entry& entry : entries_) {
    if (entry.key == key) {
      entry.bytes = std::move(bytes);
      return;
    }
  }
  entries_.push_back({std::string(key), std::move(bytes)});
}

std::string MetadataWriter::bytes() const {
  std::string out;
  for (const Entry& entry : entries_) out += entry.bytes;
  return out;
}

GgufWriter::GgufWriter(const std::string& path, const MetadataWriter& metadata,
                       std::vector<TensorPlan> tensors, std::size_t alignment)
    : file_(path), tensors_(std::move(tensors)), alignment_(alignment) {
  std::string head = "GGUF";
  append(head, kVersion);
  append<std::uint64_t>(head, tensors_.size());
  append<std::uint64_t>(head, metadata.count());
  head += metadata.bytes();
  head += directory_bytes(tensors_, alignment_);
  file_.write(head.data(), head.size());
  pad();
}

void GgufWriter::pad() {
  const auto written = static_cast<std::size_t>(file_.written());
  file_.write_zeros(aligned(written, alignment_) - written);
}

void GgufWriter::write(const std::byte* data, std::size_t bytes) {
  SPECDEC_CHECK(current_ < tensors_.size(), bytes, " bytes after the last tensor");
  const std::size_t size = tensors_[current_].bytes;
  SPECDEC_CHECK(bytes <= size - done_, bytes, " bytes for tensor ", current_);
  file_.write(data, bytes);
  done_ += bytes;
  if (done_ < size) return;
  pad();
  ++current_;
  done_ = 0;
}

std::uint64_t GgufWriter::finish() {
  SPECDEC_CHECK(current_ == tensors_.size(), current_, " of ", tensors_.size(), " tensors written");
  file_.commit();
  return file_.written();
}

}  // namespace specdec
