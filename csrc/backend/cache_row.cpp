#include "backend/cache_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "core/half.h"
#include "core/quant_blocks.h"

namespace specdec {
namespace {

BlockQ8_0 quantize_block(const float* x) {
  constexpr float kTiny = 7.52316385e-37f;  // 2^-120: below it the inverse would overflow
  constexpr float kRound = 12582912.0f;     // adding it leaves no fraction bits
  BlockQ8_0 block = {};
  float amax = 0.0f;
  bool finite = true;
  for (std::size_t i = 0; i < kBlock; ++i) {
    finite = finite && std::isfinite(x[i]);
    amax = std::max(amax, std::fabs(x[i]));
  }
  if (!finite) {
    block.d = float_to_half(std::numeric_limits<float>::quiet_NaN());
  } else if (amax >= kTiny) {
    const float inverse = 127.0f / amax;
    for (std::size_t i = 0; i < kBlock; ++i) {
      block.qs[i] = static_cast<std::int8_t>((x[i] * inverse + kRound) - kRound);
    }
    block.d = float_to_half(amax / 127.0f);
  }
  return block;
}

}  // namespace

bool is_cache_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kQ8_0;
}

void store_cache_row(DType dtype, const float* row, std::size_t n, std::byte* out) {
  SPECDEC_CHECK(is_cache_dtype(dtype), "a cache of ", dtype_info(dtype).name);
  if (dtype == DType::kF32) {
    std::memcpy(out, row, n * sizeof(float));
    return;
  }
  if (dtype == DType::kF16) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint16_t half = float_to_half(row[i]);
      std::memcpy(out + 2 * i, &half, sizeof(half));
    }
    return;
  }
  for (std::size_t i = 0; i < n; i += kBlock, out += sizeof(BlockQ8_0)) {
    const BlockQ8_0 block = quantize_block(row + i);
    std::memcpy(out, &block, sizeof(block));
  }
}

}  // namespace specdec
