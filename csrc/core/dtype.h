// Element types of tensors, with the type numbers of the GGUF format (gguf-py constants.py), and
// the block geometry of the quantised ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace specdec {

using TokenId = std::int32_t;

// The numeric values are those of the file format.
enum class DType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kIQ1_M = 29,
  kBF16 = 30,
  kMXFP4 = 39,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;    // "Q4_K": the spelling of the GGUF tools
  std::size_t block_size;   // values per block; 1 for the float types
  std::size_t block_bytes;  // bytes per block
};

// Throws InternalError for a value that is no enumerator.
const DTypeInfo& dtype_info(DType dtype);

// The type with this GGUF number, or nullopt where this library does not know it.
std::optional<DType> dtype_from_gguf(std::uint32_t type_number);

// Name -> type ("q4_k" or "Q4_K"), or nullopt.
std::optional<DType> dtype_from_name(std::string_view name);

// Bytes of a row of `values` values; `values` must be a multiple of the block size.
std::size_t row_bytes(DType dtype, std::size_t values);

}  // namespace specdec
