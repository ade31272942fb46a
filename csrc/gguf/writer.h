// Writes a GGUF file (version 3) tensor by tensor: metadata and directory first, then the data in
// the order of the directory. Nothing is kept in memory but the directory, and the file appears
// only when it is complete (core/output_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "gguf/reader.h"

namespace specdec {

// The metadata section of a file to be written.
class MetadataWriter {
 public:
  // Entries of `source` in their order, each byte for byte.
  void copy(const Metadata& source);
  // Sets a u32: in the place of a copied entry with this key, else at the end.
  void set_u32(std::string_view key, std::uint32_t value);

  std::size_t count() const { return entries_.size(); }
  std::string bytes() const;

 private:
  struct Entry {
    std::string key, bytes;
  };
  std::vector<Entry> entries_;
};

struct TensorPlan {
  std::string name;
  std::uint32_t type_number = 0;   // in the format
  std::vector<std::size_t> shape;  // outermost first
  std::size_t bytes = 0;           // of its data
};

class GgufWriter {
 public:
  // Writes everything up to the data. `alignment` must be what the metadata says (32 if nothing).
  // Throws OutputError.
  GgufWriter(const std::string& path, const MetadataWriter& metadata,
             std::vector<TensorPlan> tensors, std::size_t alignment);

  // The next bytes of the data of the current tensor; the next tensor follows when it is complete.
  void write(const std::byte* data, std::size_t bytes);
  // Checks that all tensors are complete, and gives the file its name. Returns its size.
  std::uint64_t finish();

 private:
  void pad();

  OutputFile file_;
  std::vector<TensorPlan> tensors_;
  std::size_t alignment_;
  std::size_t current_ = 0;  // tensor
  std::size_t done_ = 0;     // bytes of it
};

}  // namespace specdec
