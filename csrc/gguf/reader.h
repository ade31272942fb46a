// Opens a GGUF file (versions 2 and 3) and hands out its metadata and views of its tensors. Files
// come from strangers: every count, length, offset and product is checked before it is used, and
// nothing is allocated that the bytes left in the file could not fill. All checks happen in open();
// a GgufFile that exists is sound, except that a tensor's type may be unknown: such a tensor stays
// in the directory, so that the vocabulary and the metadata remain usable, and only view() refuses
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/mapped_file.h"
#include "core/tensor.h"
#include "gguf/metadata.h"

namespace specdec {

// One entry of the tensor directory.
struct TensorInfo {
  std::string name;                // bytes, unique in the file
  std::uint32_t type_number = 0;   // as in the file
  std::optional<DType> dtype;      // nullopt: a type this library does not know
  std::vector<std::size_t> shape;  // outermost first (the file's order reversed)
  std::size_t elements = 1;
  std::size_t data_offset = 0;   // of the data, from the start of the file
  std::size_t bytes = 0;         // 0 where the type is unknown
  std::size_t entry_offset = 0;  // of this entry in the file, for messages
};

// "Q4_K", "IQ4_NL", ...: the GGUF tools' name of a type number, also of types that this library
// cannot read; "unknown" for others.
std::string_view gguf_type_name(std::uint32_t type_number);

class GgufFile {
 public:
  // Throws GgufError naming the field and the byte offset.
  static std::shared_ptr<const GgufFile> open(const std::string& path);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return file_.path(); }
  std::size_t file_size() const { return file_.size(); }
  std::uint32_t version() const { return version_; }
  std::size_t alignment() const { return alignment_; }
  const Metadata& metadata() const { return metadata_; }

  // In file order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find_tensor(std::string_view name) const;

  // The tensor's data; points into the mapping, so it lives as long as this object.
  // view: throws GgufError for a missing tensor. find_view: nullopt for a missing one.
  // Both throw for a tensor of unknown type, naming it and the type.
  TensorView view(std::string_view name) const;
  std::optional<TensorView> find_view(std::string_view name) const;

  // The tensor's data as it lies in the file, for a tensor of any type whose size is known.
  const std::byte* data(const TensorInfo& info) const { return file_.data() + info.data_offset; }

  // The values of a vector of type I32 or I64; nullopt for a missing one. Throws GgufError for
  // another type or shape.
  std::optional<std::vector<std::int64_t>> find_integers(std::string_view name) const;

 private:
  explicit GgufFile(const std::string& path);

  void read_header(gguf::Cursor& cursor);
  void read_alignment();
  TensorInfo read_tensor_info(gguf::Cursor& cursor);
  void read_tensor_shape(gguf::Cursor& cursor, TensorInfo& info) const;
  void place_tensors(const gguf::Cursor& cursor);
  void check_overlaps(const gguf::Cursor& cursor) const;

  MappedFile file_;
  std::uint32_t version_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t metadata_count_ = 0;
  std::size_t alignment_ = 32;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace specdec
