#include "gguf/quantize/quantize_row.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/error.h"
#include "core/half.h"
#include "gguf/quantize/families.h"
#include "gguf/quantize/search.h"

namespace specdec {
namespace {

// Round to nearest, ties to even; a finite value stays finite.
std::uint16_t to_bf16(float value) {
  const std::uint32_t bits = float_to_bits(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool overflow = (rounded & 0x7f80u) == 0x7f80u;
  return static_cast<std::uint16_t>(overflow ? (rounded & 0x8000u) | 0x7f7fu : rounded);
}

template <std::uint16_t (*kConvert)(float)>
void encode_16bit(const float* src, std::byte* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t bits = kConvert(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof bits);
  }
}

}  // namespace

void quantize_row(DType dtype, const float* src, std::byte* dst, std::size_t n,
                  const float* weights) {
  const DTypeInfo& info = dtype_info(dtype);
  SPECDEC_CHECK(n % info.block_size == 0, n, " values are not whole blocks of ", info.name);
  if (n == 0) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(dst, src, n * sizeof(float));
      return;
    case DType::kF16:
      return encode_16bit<quantize::finite_half>(src, dst, n);
    case DType::kBF16:
      return encode_16bit<to_bf16>(src, dst, n);
    case DType::kQ4_0:
      return quantize::quantize_row_q4_0(src, dst, n, weights);
    case DType::kQ4_1:
      return quantize::quantize_row_q4_1(src, dst, n, weights);
    case DType::kQ5_0:
      return quantize::quantize_row_q5_0(src, dst, n, weights);
    case DType::kQ5_1:
      return quantize::quantize_row_q5_1(src, dst, n, weights);
    case DType::kQ8_0:
      return quantize::quantize_row_q8_0(src, dst, n, weights);
    case DType::kQ2_K:
      return quantize::quantize_row_q2_k(src, dst, n, weights);
    case DType::kQ3_K:
      return quantize::quantize_row_q3_k(src, dst, n, weights);
    case DType::kQ4_K:
      return quantize::quantize_row_q4_k(src, dst, n, weights);
    case DType::kQ5_K:
      return quantize::quantize_row_q5_k(src, dst, n, weights);
    case DType::kQ6_K:
      return quantize::quantize_row_q6_k(src, dst, n, weights);
    case DType::kIQ4_NL:
      return quantize::quantize_row_iq4_nl(src, dst, n, weights);
    case DType::kIQ4_XS:
      return quantize::quantize_row_iq4_xs(src, dst, n, weights);
    case DType::kMXFP4:
      return quantize::quantize_row_mxfp4(src, dst, n, weights);
    default:  // the codebook types below 4 bits, which quantize_file does not offer
      throw InvalidArgument(str("this library cannot write ", info.name));
  }
}

std::size_t first_not_finite(const float* values, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    if (!std::isfinite(values[i])) return i;
  }
  return n;
}

}  // namespace specdec
