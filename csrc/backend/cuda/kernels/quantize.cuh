// Activations as int8 in blocks of 32, by one warp per block: for the kernels that make the input
// of a product.
#pragma once

#include "backend/cuda/device_code.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/weight_layout.h"

namespace specdec::cuda {

// amax = max|x|, d = amax / 127, q = round_to_even(x * (127 / amax)). A block with amax < 2^-120
// counts as zero, because the inverse would overflow; d of one with an infinity or NaN is NaN.
// value: x of this lane; `column`, `block`: where the block lies.
__device__ __forceinline__ void store_quantized(const ActivationView& out, int column, int block,
                                                float value) {
  constexpr float kTiny = 7.52316385e-37f;  // 2^-120
  constexpr float kRound = 12582912.0f;     // adding it leaves no fraction bits
  unsigned bits = float_to_bits(value) & 0x7fffffffu;
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const unsigned other = __shfl_xor_sync(kFullWarp, bits, apart);
    bits = other > bits ? other : bits;
  }
  const float amax = bits_to_float(bits);
  const bool finite = bits < 0x7f800000u, usable = finite && amax >= kTiny;
  const float scaled = usable ? value * (127.0f / amax) : 0.0f;
  const auto rounded = static_cast<std::int8_t>((scaled + kRound) - kRound);
  int sum = rounded;  // of the lane's half block, then of the block
#pragma unroll
  for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(kFullWarp, sum, apart);
  const int other_half = __shfl_xor_sync(kFullWarp, sum, 16);

  const int lane = lane_of_warp();
  const std::size_t at = out.place(column, block);
  out.values[at * kBlockValues + 4 * quad_place(lane / 4) + lane % 4] = rounded;
  if (lane == 0) {
    const float d = usable ? amax / 127.0f : finite ? 0.0f : bits_to_float(0x7fc00000u);
    out.scales[at] = {d, d * static_cast<float>(sum + other_half)};
    out.halves[at] = {d * static_cast<float>(sum), d * static_cast<float>(other_half)};
  }
}

// A warp's block of 32 of `out`, and its lane's value of it.
struct BlockPlace {
  int column, block;

  // In row `row` of [rows, K].
  __device__ __forceinline__ std::size_t value_of(int row, const ActivationView& out) const {
    return (static_cast<std::size_t>(row) * out.blocks + block) * kBlockValues + lane_of_warp();
  }
};
__device__ __forceinline__ BlockPlace place_of_warp(const ActivationView& out, int threads) {
  const std::size_t warp =
      static_cast<std::size_t>(blockIdx.x) * (threads / kWarpLanes) + warp_of_block();
  return {static_cast<int>(warp / out.blocks), static_cast<int>(warp % out.blocks)};
}

// Columns in memory: those without a row, which fill up octets, are zeros.
SPECDEC_HD inline int padded_columns(const Columns& columns) {
  return octets_of(columns.count) * kOctet;
}
// Thread blocks with a warp for every block of 32 of these.
inline unsigned warp_blocks(const Columns& columns, const ActivationView& out, int threads) {
  const auto warps =
      static_cast<std::size_t>(padded_columns(columns)) * static_cast<std::size_t>(out.blocks);
  return blocks_for(warps * kWarpLanes, static_cast<std::size_t>(threads));
}

}  // namespace specdec::cuda
