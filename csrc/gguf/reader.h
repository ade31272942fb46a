// Opens a model in GGUF files and hands out its metadata and views of its tensors. A model may be
// split into several files (split.h); any of them may be named, and the set counts as one file. All
// checks happen in open() (shard.h says which); only view() refuses a tensor of unknown type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "gguf/metadata.h"
#include "gguf/shard.h"

namespace specdec {

class GgufFile {
 public:
  // Throws GgufError naming the file, the field and the byte offset; for a split model also where a
  // part is missing, has a wrong name, or does not belong to the others.
  static std::shared_ptr<const GgufFile> open(const std::string& path);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  // As it was opened; of a split model one part.
  const std::string& path() const { return path_; }
  // Of all parts in their order.
  std::vector<std::string> paths() const;
  // Of all parts together.
  std::size_t file_size() const;

  // These are the first part's: the others have no metadata but their number.
  std::uint32_t version() const { return shards_[0]->version(); }
  std::size_t alignment() const { return shards_[0]->alignment(); }
  const Metadata& metadata() const { return shards_[0]->metadata(); }

  // In file order, part after part.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;
  // Path of the part that holds a tensor, for messages.
  const std::string& path_of(const TensorInfo& info) const { return shards_[info.shard]->path(); }

  // The tensor's data; points into the mapping, so it lives as long as this object.
  // view: throws GgufError for a missing tensor. find_view: nullopt for a missing one.
  // Both throw for a tensor of unknown type, naming it and the type.
  TensorView view(std::string_view name) const;
  std::optional<TensorView> find_view(std::string_view name) const;

  // The tensor's data as it lies in the file, for a tensor of any type whose size is known.
  const std::byte* data(const TensorInfo& info) const {
    return shards_[info.shard]->data() + info.data_offset;
  }

  // The values of a vector of type I32 or I64; nullopt for a missing one. Throws GgufError for
  // another type or shape.
  std::optional<std::vector<std::int64_t>> find_integers(std::string_view name) const;

 private:
  explicit GgufFile(const std::string& path);

  void add_tensors();

  std::string path_;
  std::vector<std::unique_ptr<const GgufShard>> shards_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

// `error`, its message beginning with the file's path unless it already does.
GgufError with_path(const GgufFile& file, const GgufError& error);

// Does `work`, which reads what a file means; its GgufErrors name the file.
template <typename Work>
auto naming_file(const GgufFile& file, Work&& work) {
  try {
    return work();
  } catch (const GgufError& error) {
    throw with_path(file, error);
  }
}

}  // namespace specdec
