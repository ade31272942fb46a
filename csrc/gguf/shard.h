// One GGUF file (version 2 or 3), mapped and checked: its metadata and its tensor directory. Files
// come from strangers: every count, length, offset and product is checked before it is used, and
// nothing is allocated that the bytes left in the file could not fill. A GgufShard that exists is
// sound, except that a tensor's type may be unknown: such a tensor stays in the directory, so that
// the vocabulary and the metadata remain usable. Whoever reads a model wants reader.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/mapped_file.h"
#include "gguf/metadata.h"

namespace specdec {

// One entry of the tensor directory.
struct TensorInfo {
  std::string name;                // bytes, unique in the file
  std::uint32_t type_number = 0;   // as in the file
  std::optional<DType> dtype;      // nullopt: a type this library does not know
  std::vector<std::size_t> shape;  // outermost first (the file's order reversed)
  std::size_t elements = 1;
  std::size_t shard = 0;         // the file that holds it; 0 unless the model is split
  std::size_t data_offset = 0;   // of the data, from the start of that file
  std::size_t bytes = 0;         // 0 where the type is unknown
  std::size_t entry_offset = 0;  // of this entry in the file, for messages
};

// Bytes of an element of the types, by GGUF number, that hold one number each and are no weights
// (I8 to I64, F64); 0 for others.
std::size_t plain_type_bytes(std::uint32_t type_number);

// "Q4_K", "IQ4_NL", ...: the GGUF tools' name of a type number, also of types that this library
// cannot read; "unknown" for others.
std::string_view gguf_type_name(std::uint32_t type_number);

// The number of a type of which data can be written: one that this library decodes, or a plain one.
std::optional<std::uint32_t> gguf_type_number(std::string_view name);

class GgufShard {
 public:
  // Throws GgufError naming the field and the byte offset.
  explicit GgufShard(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::byte* data() const { return file_.data(); }
  std::size_t size() const { return file_.size(); }
  std::uint32_t version() const { return version_; }
  std::size_t alignment() const { return alignment_; }
  const Metadata& metadata() const { return metadata_; }
  // In file order.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }

 private:
  void read_header(gguf::Cursor& cursor);
  void read_alignment();
  TensorInfo read_tensor_info(gguf::Cursor& cursor);
  void read_tensor_shape(gguf::Cursor& cursor, TensorInfo& info) const;
  void place_tensors(const gguf::Cursor& cursor);
  void check_overlaps(const gguf::Cursor& cursor) const;
  void check_end(const gguf::Cursor& cursor) const;

  MappedFile file_;
  std::uint32_t version_ = 0;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t metadata_count_ = 0;
  std::size_t alignment_ = 32;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace specdec
