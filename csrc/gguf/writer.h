// Writes a model as GGUF (version 3) tensor by tensor: metadata and directory first, then the data
// in the order of the directory; as one file, or split into parts (split.h). Nothing is kept in
// memory but the directory, and no file appears before all are complete (core/output_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/output_file.h"
#include "gguf/metadata_writer.h"

namespace specdec {

struct TensorPlan {
  std::string name;
  std::uint32_t type_number = 0;   // in the format
  std::vector<std::size_t> shape;  // outermost first
  std::size_t bytes = 0;           // of its data
};

// A tensor of a type by its name: "Q4_K", "I64". Throws InvalidArgument for an unknown type, and
// for rows that are no whole blocks of it.
TensorPlan plan_tensor(std::string name, std::string_view type, std::vector<std::size_t> shape);

inline constexpr std::size_t kUsualAlignment = 32;  // of the format

class GgufWriter {
 public:
  // Writes everything of the first file up to the data. `alignment`: a power of two; the key that
  // tells it is set where it is not the format's 32. max_bytes: a part gets no further tensor that
  // would make it larger (one tensor it always has); 0: one file. Where one part is enough, it has
  // the name `path`, else the parts have names made of it.
  // Throws OutputError; InvalidArgument where there would be more than 65,535 parts.
  GgufWriter(const std::string& path, MetadataWriter metadata, std::vector<TensorPlan> tensors,
             std::size_t alignment, std::uint64_t max_bytes = 0);

  // Of the files, in order.
  std::vector<std::string> paths() const;

  // The next bytes of the data of the current tensor; the next tensor follows when it is complete.
  void write(const std::byte* data, std::size_t bytes);
  // Checks that all tensors are complete, and gives the files their names. Returns the sum of their
  // sizes.
  std::uint64_t finish();

 private:
  void plan_parts(std::uint64_t max_bytes);
  MetadataWriter metadata_of(std::size_t part) const;
  std::string head_of(std::size_t part) const;
  std::string path_of(std::size_t part) const;
  void begin_part();
  void pad();

  std::string path_;
  MetadataWriter metadata_;
  std::vector<TensorPlan> tensors_;
  std::size_t alignment_;
  std::vector<std::size_t> ends_;                   // of each part: the tensor after its last
  std::vector<std::unique_ptr<OutputFile>> files_;  // of the parts begun
  std::size_t current_ = 0;                         // tensor
  std::size_t done_ = 0;                            // bytes of it
};

}  // namespace specdec
