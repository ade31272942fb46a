#include "gguf/reader.h"

#include <cstring>

#include "core/error.h"
#include "core/printable.h"
#include "gguf/cursor.h"
#include "gguf/split.h"

namespace specdec {

using gguf::kDamaged;

std::shared_ptr<const GgufFile> GgufFile::open(const std::string& path) {
  return std::shared_ptr<const GgufFile>(new GgufFile(path));
}

GgufFile::GgufFile(const std::string& path) : path_(path), shards_(open_shards(path)) {
  add_tensors();
}

void GgufFile::add_tensors() {
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (TensorInfo info : shards_[shard]->tensors()) {
      info.shard = shard;
      const auto [place, is_new] = index_.emplace(info.name, tensors_.size());
      if (!is_new) {
        throw GgufError(str(printable(path_of(info)), ": byte ", info.entry_offset, ": tensor ",
                            quoted(info.name), " is also in ",
                            printable(path_of(tensors_[place->second])),
                            ": the files are not parts of one model"));
      }
      tensors_.push_back(std::move(info));
    }
  }
}

std::vector<std::string> GgufFile::paths() const {
  std::vector<std::string> all;
  for (const auto& shard : shards_) all.push_back(shard->path());
  return all;
}

std::size_t GgufFile::file_size() const {
  std::size_t bytes = 0;
  for (const auto& shard : shards_) bytes += shard->size();
  return bytes;
}

const TensorInfo* GgufFile::find_tensor(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::optional<std::vector<std::int64_t>> GgufFile::find_integers(std::string_view name) const {
  const TensorInfo* info = find_tensor(name);
  if (info == nullptr) return std::nullopt;
  constexpr std::uint32_t kI32 = 26, kI64 = 27;
  const std::size_t width = plain_type_bytes(info->type_number);
  const bool integers = info->type_number == kI32 || info->type_number == kI64;
  if (!integers || info->shape.size() != 1) {
    throw GgufError(str(printable(path_of(*info)), ": byte ", info->entry_offset, ": tensor ",
                        quoted(name), " has type ", gguf_type_name(info->type_number), " and ",
                        info->shape.size(),
                        " dimensions; a list of I32 or I64 is expected: ", kDamaged));
  }
  std::vector<std::int64_t> values;
  values.reserve(info->elements);
  const std::byte* data = this->data(*info);
  for (std::size_t i = 0; i < info->elements; ++i, data += width) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    if (width == sizeof(wide)) {
      std::memcpy(&wide, data, sizeof(wide));
    } else {
      std::memcpy(&narrow, data, sizeof(narrow));
      wide = narrow;
    }
    values.push_back(wide);
  }
  return values;
}

TensorView GgufFile::view(std::string_view name) const {
  std::optional<TensorView> found = find_view(name);
  if (!found) {
    throw GgufError(str(printable(path()), ": tensor ", quoted(name),
                        " is missing: the file is incomplete or not a model of a supported kind"));
  }
  return *std::move(found);
}

std::optional<TensorView> GgufFile::find_view(std::string_view name) const {
  const TensorInfo* info = find_tensor(name);
  if (info == nullptr) return std::nullopt;
  if (!info->dtype) {
    throw GgufError(str(printable(path_of(*info)), ": byte ", info->entry_offset, ": tensor ",
                        quoted(name), " has type ", info->type_number, " (",
                        gguf_type_name(info->type_number),
                        "), which this library cannot read: get the model in another type, such "
                        "as Q4_K_M, Q8_0 or F16"));
  }
  TensorView view;
  view.name = info->name;
  view.dtype = *info->dtype;
  view.shape = info->shape;
  view.data = this->data(*info);
  view.bytes = info->bytes;
  view.mapped = true;
  return view;
}

GgufError with_path(const GgufFile& file, const GgufError& error) {
  const std::string message = error.what();
  for (const std::string& path : file.paths()) {
    if (message.starts_with(printable(path) + ": ")) return error;
  }
  return GgufError(str(printable(file.path()), ": ", message));
}

}  // namespace specdec
