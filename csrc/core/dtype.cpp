#include "core/dtype.h"

#include <array>
#include <cctype>
#include <string>

#include "core/error.h"
#include "core/quant_blocks.h"

namespace specdec {
namespace {

constexpr std::array<DTypeInfo, 23> kInfos = {{
    {DType::kF32, "F32", 1, 4},
    {DType::kF16, "F16", 1, 2},
    {DType::kBF16, "BF16", 1, 2},
    {DType::kQ4_0, "Q4_0", kBlock, sizeof(BlockQ4_0)},
    {DType::kQ4_1, "Q4_1", kBlock, sizeof(BlockQ4_1)},
    {DType::kQ5_0, "Q5_0", kBlock, sizeof(BlockQ5_0)},
    {DType::kQ5_1, "Q5_1", kBlock, sizeof(BlockQ5_1)},
    {DType::kQ8_0, "Q8_0", kBlock, sizeof(BlockQ8_0)},
    {DType::kQ2_K, "Q2_K", kSuperBlock, sizeof(BlockQ2_K)},
    {DType::kQ3_K, "Q3_K", kSuperBlock, sizeof(BlockQ3_K)},
    {DType::kQ4_K, "Q4_K", kSuperBlock, sizeof(BlockQ4_K)},
    {DType::kQ5_K, "Q5_K", kSuperBlock, sizeof(BlockQ5_K)},
    {DType::kQ6_K, "Q6_K", kSuperBlock, sizeof(BlockQ6_K)},
    {DType::kIQ4_NL, "IQ4_NL", kBlock, sizeof(BlockIQ4_NL)},
    {DType::kMXFP4, "MXFP4", kBlock, sizeof(BlockMXFP4)},
    {DType::kIQ4_XS, "IQ4_XS", kSuperBlock, sizeof(BlockIQ4_XS)},
    {DType::kIQ3_XXS, "IQ3_XXS", kSuperBlock, sizeof(BlockIQ3_XXS)},
    {DType::kIQ3_S, "IQ3_S", kSuperBlock, sizeof(BlockIQ3_S)},
    {DType::kIQ2_XXS, "IQ2_XXS", kSuperBlock, sizeof(BlockIQ2_XXS)},
    {DType::kIQ2_XS, "IQ2_XS", kSuperBlock, sizeof(BlockIQ2_XS)},
    {DType::kIQ2_S, "IQ2_S", kSuperBlock, sizeof(BlockIQ2_S)},
    {DType::kIQ1_S, "IQ1_S", kSuperBlock, sizeof(BlockIQ1_S)},
    {DType::kIQ1_M, "IQ1_M", kSuperBlock, sizeof(BlockIQ1_M)},
}};

}  // namespace

const DTypeInfo& dtype_info(DType dtype) {
  for (const DTypeInfo& info : kInfos) {
    if (info.dtype == dtype) return info;
  }
  throw InternalError(str("unknown DType ", static_cast<std::uint32_t>(dtype)));
}

std::optional<DType> dtype_from_gguf(std::uint32_t type_number) {
  for (const DTypeInfo& info : kInfos) {
    if (static_cast<std::uint32_t>(info.dtype) == type_number) return info.dtype;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const DTypeInfo& info : kInfos) {
    if (info.name == upper) return info.dtype;
  }
  return std::nullopt;
}

std::size_t row_bytes(DType dtype, std::size_t values) {
  const DTypeInfo& info = dtype_info(dtype);
  SPECDEC_CHECK(values % info.block_size == 0, values, " values in rows of ", info.name);
  return values / info.block_size * info.block_bytes;
}

}  // namespace specdec
