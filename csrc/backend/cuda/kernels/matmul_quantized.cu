// Products with quantised weights: out[i, n] is one chain over the blocks of K in order,
//   acc = fma(d_w * d_x, float(dot), acc)        then, for types with minima,
//   acc = fma(m_w, d_x * float(sum q_x), acc)
// as backend/README.md says; dots are exact integers.
//
// One thread block holds a group of 32 weight rows and up to 32 columns (rows of x). Its warps
// share out the blocks of K: each decodes one block of the group (lane = row) and multiplies it by
// every column. Then the chains: each warp carries those of a few columns over the blocks just
// multiplied. So the weights are read once, by all warps at once, and still every chain is serial.
#include <algorithm>

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/weight_formats.cuh"
#include "backend/cuda/launch.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpLanes;

// Columns of one thread block: what fits into 48 KiB of shared memory.
template <class F>
constexpr int kTileCols = F::kHalves ? 16 : 32;

// Shared memory of a tile of `cols` columns: per block of K in flight, the scales and the dots.
template <class F>
SPECDEC_HD constexpr std::size_t stage_floats(int cols) {
  return static_cast<std::size_t>(F::kParts * kGroupRows) *
         static_cast<std::size_t>(1 + (F::kMins ? 1 : 0) + cols);
}

// The products of block `b` with all columns of the tile: dots [cols, parts, 32], d and m [parts,
// 32].
template <class F>
__device__ __forceinline__ void multiply_block(const QuantizedView& w, const ActivationView& x,
                                               int group, int b, int first_col, int cols,
                                               float* stage) {
  const int lane = lane_of_warp();
  const std::size_t block = static_cast<std::size_t>(group) * w.blocks + b;
  const std::uint8_t* header = nullptr;
  if constexpr (F::kHeaderBytes > 0) {
    const std::size_t super = static_cast<std::size_t>(group) * (w.blocks / kSubBlocks);
    header = w.headers + (super + b / kSubBlocks) * F::kHeaderBytes;
  }
  Quads quads;
  F::values(w.planes + block * F::kPlaneBytes, lane, &quads);
  const RowScales scales = F::scales(w.scales + block * F::kScaleBytes, header, lane);
#pragma unroll
  for (int part = 0; part < F::kParts; ++part) {
    stage[part * kGroupRows + lane] = scales.d[part];
    if constexpr (F::kMins) stage[(F::kParts + part) * kGroupRows + lane] = scales.m[part];
  }
  float* dots = stage + F::kParts * (F::kMins ? 2 : 1) * kGroupRows;
  for (int c = 0; c < cols; ++c) {
    const std::size_t x_block = static_cast<std::size_t>(first_col + c) * w.blocks + b;
    const auto* quad = reinterpret_cast<const uint4*>(x.values + x_block * kBlockValues);
    const uint4 low = quad[0], high = quad[1];
    const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    int dot[2] = {0, 0};
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      int& sum = dot[F::kHalves ? q / 4 : 0];
      sum = __dp4a(static_cast<int>(quads.word[q]), static_cast<int>(words[q]), sum);
    }
    if constexpr (F::kZeroPoint != 0) {
      const int first = x.sums[2 * x_block], second = x.sums[2 * x_block + 1];
      dot[0] -= F::kZeroPoint * (F::kHalves ? first : first + second);
      dot[1] -= F::kZeroPoint * second;
    }
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      dots[(c * F::kParts + part) * kGroupRows + lane] = static_cast<float>(dot[part]);
    }
  }
}

// One step of the chain of row `lane` and tile column c, over the block that lies in `stage`.
template <class F>
__device__ __forceinline__ float chain_step(float acc, const float* stage, const ActivationView& x,
                                            std::size_t x_block, int c) {
  const int lane = lane_of_warp();
  const float* dots = stage + F::kParts * (F::kMins ? 2 : 1) * kGroupRows;
  const float d_x = x.d[x_block];
#pragma unroll
  for (int part = 0; part < F::kParts; ++part) {
    const float dot = dots[(c * F::kParts + part) * kGroupRows + lane];
    acc = fmaf(stage[part * kGroupRows + lane] * d_x, dot, acc);
  }
  if constexpr (F::kMins) {
    const int first = x.sums[2 * x_block], second = x.sums[2 * x_block + 1];
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      const int sum = part == 1 ? second : F::kHalves ? first : first + second;
      const float min = stage[(F::kParts + part) * kGroupRows + lane];
      acc = fmaf(min, d_x * static_cast<float>(sum), acc);
    }
  }
  return acc;
}

// grid: (groups of 32 weight rows, tiles of columns). x [rows, K], out [rows, N]
template <class F>
__global__ void __launch_bounds__(kThreads)
    multiply_quantized(QuantizedView w, ActivationView x, int rows, float* out) {
  constexpr int kChains = kTileCols<F> / kWarps;  // columns per warp
  SPECDEC_DYNAMIC_SHARED(float, stages);          // [kWarps, stage_floats]
  const int group = static_cast<int>(blockIdx.x), warp = warp_of_block();
  const int first_col = static_cast<int>(blockIdx.y) * kTileCols<F>;
  const int cols = rows - first_col < kTileCols<F> ? rows - first_col : kTileCols<F>;
  const int stage_size = static_cast<int>(stage_floats<F>(cols));
  float acc[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) acc[i] = 0.0f;
  for (int first = 0; first < w.blocks; first += kWarps) {
    const int count = w.blocks - first < kWarps ? w.blocks - first : kWarps;
    if (warp < count) {
      multiply_block<F>(w, x, group, first + warp, first_col, cols, stages + warp * stage_size);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChains; ++i) {
      const int c = warp + i * kWarps;
      if (c < cols) {
        for (int s = 0; s < count; ++s) {
          const std::size_t x_block =
              static_cast<std::size_t>(first_col + c) * w.blocks + first + s;
          acc[i] = chain_step<F>(acc[i], stages + s * stage_size, x, x_block, c);
        }
      }
    }
    __syncthreads();
  }
  const int row = group * kGroupRows + lane_of_warp();
#pragma unroll
  for (int i = 0; i < kChains; ++i) {
    const int c = warp + i * kWarps;
    if (c < cols && row < w.rows) {
      out[static_cast<std::size_t>(first_col + c) * w.rows + row] = acc[i];
    }
  }
}

template <class F>
void launch_multiply(StreamHandle stream, const QuantizedView& w, const ActivationView& x, int rows,
                     float* out) {
  const Grid grid{blocks_for(static_cast<std::size_t>(w.rows), kGroupRows),
                  blocks_for(static_cast<std::size_t>(rows), kTileCols<F>), 1};
  const std::size_t shared = kWarps * stage_floats<F>(std::min(rows, kTileCols<F>)) * sizeof(float);
  launch("multiply_quantized", multiply_quantized<F>, grid, kThreads, shared, stream, w, x, rows,
         out);
}

// Below this the inverse scale would overflow; such a block counts as zero.
constexpr float kTinyActivation = 7.52316385e-37f;  // 2^-120

// One warp per block of 32: amax = max|x|, d = amax / 127, q = round_to_even(x * (127 / amax)); d
// is NaN for a block that holds an infinity or a NaN. x [count, 32], q [count, 32], sums [count, 2]
__global__ void __launch_bounds__(kThreads)
    quantize(std::int64_t count, const float* x, std::int8_t* q, float* d, int* sums) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp_of_block();
  if (block >= count) return;  // whole warps
  const int lane = lane_of_warp();
  const float value = x[block * kBlockValues + lane];
  unsigned bits = float_to_bits(value) & 0x7fffffffu;
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const unsigned other = __shfl_xor_sync(kFullWarp, bits, apart);
    bits = other > bits ? other : bits;
  }
  const float amax = bits_to_float(bits);
  const bool finite = bits < 0x7f800000u, usable = finite && amax >= kTinyActivation;
  constexpr float kRound = 12582912.0f;  // adding it leaves no fraction bits
  const float scaled = usable ? value * (127.0f / amax) : 0.0f;
  const auto rounded = static_cast<std::int8_t>((scaled + kRound) - kRound);
  q[block * kBlockValues + lane] = rounded;
  int sum = rounded;
#pragma unroll
  for (int apart = 8; apart > 0; apart /= 2) sum += __shfl_xor_sync(kFullWarp, sum, apart);
  if (lane % 16 == 0) sums[2 * block + lane / 16] = sum;
  if (lane == 0) d[block] = usable ? amax / 127.0f : finite ? 0.0f : bits_to_float(0x7fc00000u);
}

}  // namespace

void queue_quantize(StreamHandle stream, int rows, int blocks, const float* x, std::int8_t* q,
                    float* d, int* sums) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * blocks;
  launch("quantize", quantize, {blocks_for(static_cast<std::size_t>(count), kWarps)}, kThreads, 0,
         stream, count, x, q, d, sums);
}

void queue_multiply(StreamHandle stream, DType dtype, const QuantizedView& w,
                    const ActivationView& x, int rows, float* out) {
  switch (dtype) {
    case DType::kQ4_0:
      return launch_multiply<FormatQ4_0>(stream, w, x, rows, out);
    case DType::kQ4_1:
      return launch_multiply<FormatQ4_1>(stream, w, x, rows, out);
    case DType::kQ5_0:
      return launch_multiply<FormatQ5_0>(stream, w, x, rows, out);
    case DType::kQ5_1:
      return launch_multiply<FormatQ5_1>(stream, w, x, rows, out);
    case DType::kQ8_0:
      return launch_multiply<FormatQ8_0>(stream, w, x, rows, out);
    case DType::kQ2_K:
      return launch_multiply<FormatQ2_K>(stream, w, x, rows, out);
    case DType::kQ3_K:
      return launch_multiply<FormatQ3_K>(stream, w, x, rows, out);
    case DType::kQ4_K:
      return launch_multiply<FormatQ4_K>(stream, w, x, rows, out);
    case DType::kQ5_K:
      return launch_multiply<FormatQ5_K>(stream, w, x, rows, out);
    case DType::kQ6_K:
      return launch_multiply<FormatQ6_K>(stream, w, x, rows, out);
    case DType::kIQ4_NL:
      return launch_multiply<FormatIQ4_NL>(stream, w, x, rows, out);
    case DType::kMXFP4:
      return launch_multiply<FormatMXFP4>(stream, w, x, rows, out);
    case DType::kIQ4_XS:
      return launch_multiply<FormatIQ4_XS>(stream, w, x, rows, out);
    case DType::kIQ3_XXS:
      return launch_multiply<FormatIQ3_XXS>(stream, w, x, rows, out);
    case DType::kIQ3_S:
      return launch_multiply<FormatIQ3_S>(stream, w, x, rows, out);
    case DType::kIQ2_XXS:
      return launch_multiply<FormatIQ2_XXS>(stream, w, x, rows, out);
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return launch_multiply<FormatIQ2_XS>(stream, w, x, rows, out);
    case DType::kIQ1_S:
      return launch_multiply<FormatIQ1_S>(stream, w, x, rows, out);
    case DType::kIQ1_M:
      return launch_multiply<FormatIQ1_M>(stream, w, x, rows, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  throw InternalError("a float type in a quantised product");
}

}  // namespace specdec::cuda
