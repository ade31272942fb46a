// Products with F32, F16 and BF16 weights: 16 virtual lanes over K, lane j taking k = j mod 16 in
// order by fused multiply-adds, then the fixed tree (sum_16_lanes). A half warp carries one weight
// row; the layout (FloatView) gives each lane the values of its chain in reads of 16 bytes. The
// instruction sequence of a column is the same at every width.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/launch.h"
#include "core/error.h"
#include "core/half.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = kFloatRows * kVirtualLanes;
constexpr int kMaxCols = 16;

// 16 bytes of weights as floats.
struct WeightF32 {
  static constexpr int kPerLane = values_per_lane(4);
  __device__ __forceinline__ static void unpack(uint4 raw, float* out) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = bits_to_float(words[i]);
  }
};
struct WeightF16 {
  static constexpr int kPerLane = values_per_lane(2);
  __device__ __forceinline__ static void unpack(uint4 raw, float* out) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = half_value(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
};
struct WeightBF16 {
  static constexpr int kPerLane = values_per_lane(2);
  __device__ __forceinline__ static void unpack(uint4 raw, float* out) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = bf16_to_float(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
};

// grid: (blocks of 16 weight rows, tiles of kCols columns). x: arranged; out [rows, N]
template <class W, int kCols>
__global__ void __launch_bounds__(kThreads)
    multiply_float(FloatView w, const float* x, int rows, float* out) {
  const int lane = static_cast<int>(threadIdx.x) % kVirtualLanes;
  const int row =
      static_cast<int>(blockIdx.x) * kFloatRows + static_cast<int>(threadIdx.x) / kVirtualLanes;
  const int first_col = static_cast<int>(blockIdx.y) * kCols;
  const int runs = runs_of(w.cols, W::kPerLane),
            steps = (w.cols + kVirtualLanes - 1) / kVirtualLanes;
  const std::size_t run_values = static_cast<std::size_t>(kVirtualLanes) * W::kPerLane;
  const uint4* weights = reinterpret_cast<const uint4*>(w.data) +
                         static_cast<std::size_t>(row) * runs * kVirtualLanes + lane;
  float acc[kCols];
#pragma unroll
  for (int c = 0; c < kCols; ++c) acc[c] = 0.0f;
  for (int run = 0; run < runs; ++run) {
    float values[W::kPerLane];
    W::unpack(weights[static_cast<std::size_t>(run) * kVirtualLanes], values);
    const int left = steps - run * W::kPerLane;
#pragma unroll
    for (int c = 0; c < kCols; ++c) {
      if (first_col + c < rows) {
        const std::size_t at = static_cast<std::size_t>(first_col + c) * runs + run;
        const float* column = x + at * run_values + lane * W::kPerLane;
#pragma unroll
        for (int i = 0; i < W::kPerLane; ++i) {
          if (i < left) acc[c] = fmaf(values[i], column[i], acc[c]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < kCols; ++c) {
    const float sum = sum_16_lanes(acc[c]);
    if (lane == 0 && row < w.rows && first_col + c < rows) {
      out[static_cast<std::size_t>(first_col + c) * w.rows + row] = sum;
    }
  }
}

template <class W, int kCols>
void launch_tile(StreamHandle stream, const FloatView& w, const float* x, int rows, float* out) {
  const Grid grid{blocks_for(static_cast<std::size_t>(w.rows), kFloatRows),
                  blocks_for(static_cast<std::size_t>(rows), kCols), 1};
  launch("multiply_float", multiply_float<W, kCols>, grid, kThreads, 0, stream, w, x, rows, out);
}

template <class W>
void launch_multiply(StreamHandle stream, const FloatView& w, const float* x, int rows,
                     float* out) {
  if (rows == 1) return launch_tile<W, 1>(stream, w, x, rows, out);
  if (rows <= 4) return launch_tile<W, 4>(stream, w, x, rows, out);
  if (rows <= 8) return launch_tile<W, 8>(stream, w, x, rows, out);
  launch_tile<W, kMaxCols>(stream, w, x, rows, out);
}

// arranged[i, run, lane, step] = x[i, (run * per_lane + step) * 16 + lane], 0 beyond K
__global__ void arrange(int rows, int cols, int per_lane, const float* x, float* arranged) {
  const int run_values = kVirtualLanes * per_lane;
  const int padded = runs_of(cols, per_lane) * run_values;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(rows) * padded) return;
  const int row = static_cast<int>(i / padded), at = static_cast<int>(i % padded);
  const int run = at / run_values, lane = at % run_values / per_lane, step = at % per_lane;
  const int k = (run * per_lane + step) * kVirtualLanes + lane;
  arranged[i] = k < cols ? x[static_cast<std::size_t>(row) * cols + k] : 0.0f;
}

}  // namespace

void queue_arrange(StreamHandle stream, int rows, int cols, int per_lane, const float* x,
                   float* arranged) {
  const std::size_t padded =
      static_cast<std::size_t>(runs_of(cols, per_lane)) * kVirtualLanes * per_lane;
  launch("arrange", arrange, {blocks_for(padded * rows, kThreads)}, kThreads, 0, stream, rows, cols,
         per_lane, x, arranged);
}

void queue_multiply(StreamHandle stream, DType dtype, const FloatView& w, const float* x, int rows,
                    float* out) {
  switch (dtype) {
    case DType::kF32:
      return launch_multiply<WeightF32>(stream, w, x, rows, out);
    case DType::kF16:
      return launch_multiply<WeightF16>(stream, w, x, rows, out);
    case DType::kBF16:
      return launch_multiply<WeightBF16>(stream, w, x, rows, out);
    default:
      throw InternalError("a quantised type in a float product");
  }
}

}  // namespace specdec::cuda
