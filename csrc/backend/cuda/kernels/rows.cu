// Norms, element-wise operations, and the same with their results as the input of a product.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/quantize.cuh"
#include "backend/cuda/launch.h"
#include "core/math.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStage = 4096;  // values of a row in shared memory at once

// out[k] = (x[k] * inv) * gain[k], inv = 1 / sqrt(sum / n + eps). The sum runs on 16 lanes, lane j
// taking k = j mod 16 in order by fused multiply-adds: the block stages the row, half a warp sums.
// `quantized`, unless null, gets the result as well (cols = 32 * blocks).
// grid: rows; with `quantized`, as many as its octets have columns
__global__ void __launch_bounds__(kThreads)
    rms_norm(int rows, int cols, const float* x, const float* gain, float eps, float* out,
             ActivationView quantized) {
  SPECDEC_SHARED(float, stage, [kStage]);
  SPECDEC_SHARED(float, shared_inv, [1]);
  const int thread = static_cast<int>(threadIdx.x), row = static_cast<int>(blockIdx.x);
  if (row >= rows) {  // the whole block: zeros fill up the octet
    for (int b = warp_of_block(); b < quantized.blocks; b += kThreads / kWarpLanes) {
      store_quantized(quantized, row, b, 0.0f);
    }
    return;
  }
  x += static_cast<std::size_t>(blockIdx.x) * cols;
  out += static_cast<std::size_t>(blockIdx.x) * cols;
  float sum = 0.0f;
  for (int first = 0; first < cols; first += kStage) {
    const int count = cols - first < kStage ? cols - first : kStage;
    for (int k = thread; k < count; k += kThreads) stage[k] = x[first + k];
    __syncthreads();
    if (thread < kVirtualLanes) {
      for (int k = thread; k < count; k += kVirtualLanes) sum = fmaf(stage[k], stage[k], sum);
    }
    __syncthreads();
  }
  if (thread < kWarpLanes) {
    const float mean = sum_16_lanes(sum) / static_cast<float>(cols);
    if (thread == 0) shared_inv[0] = 1.0f / sqrtf(mean + eps);
  }
  __syncthreads();
  const float inv = shared_inv[0];
  for (int k = thread; k < cols; k += kThreads) {
    const float value = (x[k] * inv) * gain[k];
    out[k] = value;
    if (quantized.values != nullptr) store_quantized(quantized, row, k / kBlockValues, value);
  }
}

__global__ void __launch_bounds__(kThreads) add(std::int64_t count, float* x, const float* y) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) x[i] = x[i] + y[i];
}

__global__ void __launch_bounds__(kThreads)
    copy_rows(int rows, int cols, const float* x, std::int64_t x_stride, float* out,
              std::int64_t out_stride) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(rows) * cols) return;
  const std::int64_t row = i / cols, k = i % cols;
  out[row * out_stride + k] = x[row * x_stride + k];
}

__global__ void __launch_bounds__(kThreads)
    add_silu(std::int64_t count, int cols, float* x, const float* y, const float* bias) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float value = y[i] + bias[i % cols];
  x[i] += value / (1.0f + exp_f32(-value));
}

__global__ void __launch_bounds__(kThreads) fill(std::int64_t count, float value, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[i] = value;
}

__global__ void __launch_bounds__(kThreads)
    scatter(std::int64_t count, const float* logits, const int* ids, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) out[ids[i]] = logits[i];
}

// silu(g) = g / (1 + exp(-g))
__device__ __forceinline__ float gated(float g, float up) {
  return g / (1.0f + exp_f32(0.0f - g)) * up;
}
__global__ void __launch_bounds__(kThreads)
    silu_mul(std::int64_t count, float* gate, const float* up) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) gate[i] = gated(gate[i], up[i]);
}

// One warp per block of 32 of `out`, whose columns behind `rows` become zero.
struct BlockPlace {
  int row, block;
  std::size_t at;  // of this lane's value in [rows, K]
};
__device__ __forceinline__ BlockPlace place_of_warp(const ActivationView& out) {
  const std::size_t warp =
      static_cast<std::size_t>(blockIdx.x) * (kThreads / kWarpLanes) + warp_of_block();
  const auto row = static_cast<int>(warp / out.blocks), block = static_cast<int>(warp % out.blocks);
  return {row, block, warp * kBlockValues + lane_of_warp()};
}
__global__ void __launch_bounds__(kThreads) quantize(int rows, const float* x, ActivationView out) {
  const BlockPlace to = place_of_warp(out);
  if (to.row >= octets_of(rows) * kOctet) return;  // whole warps
  store_quantized(out, to.row, to.block, to.row < rows ? x[to.at] : 0.0f);
}
__global__ void __launch_bounds__(kThreads)
    silu_mul_quantize(int rows, const float* gate, const float* up, ActivationView out) {
  const BlockPlace to = place_of_warp(out);
  if (to.row >= octets_of(rows) * kOctet) return;
  store_quantized(out, to.row, to.block, to.row < rows ? gated(gate[to.at], up[to.at]) : 0.0f);
}

Grid grid_for(std::int64_t count) {
  return {blocks_for(static_cast<std::size_t>(count), kThreads)};
}
// A warp for every block of 32.
Grid grid_for(int rows, const ActivationView& out) {
  return grid_for(static_cast<std::int64_t>(octets_of(rows)) * kOctet * out.blocks * kBlockValues);
}

}  // namespace

void queue_rms_norm(StreamHandle stream, int rows, int cols, const float* x, const float* gain,
                    float eps, float* out, const ActivationView& quantized) {
  const int grid_rows = quantized.values == nullptr ? rows : octets_of(rows) * kOctet;
  launch("rms_norm", rms_norm, {static_cast<unsigned>(grid_rows)}, kThreads, 0, stream, rows, cols,
         x, gain, eps, out, quantized);
}

void queue_add(StreamHandle stream, std::int64_t count, float* x, const float* y) {
  launch("add", add, grid_for(count), kThreads, 0, stream, count, x, y);
}

void queue_copy_rows(StreamHandle stream, int rows, int cols, const float* x, std::int64_t x_stride,
                     float* out, std::int64_t out_stride) {
  launch("copy_rows", copy_rows, grid_for(static_cast<std::int64_t>(rows) * cols), kThreads, 0,
         stream, rows, cols, x, x_stride, out, out_stride);
}

void queue_add_silu(StreamHandle stream, int rows, int cols, float* x, const float* y,
                    const float* bias) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * cols;
  launch("add_silu", add_silu, grid_for(count), kThreads, 0, stream, count, cols, x, y, bias);
}

void queue_scatter(StreamHandle stream, int count, const float* logits, const int* ids, int vocab,
                   float* out) {
  launch("fill", fill, grid_for(vocab), kThreads, 0, stream, vocab, bits_to_float(0xff800000u),
         out);
  if (count == 0) return;
  launch("scatter", scatter, grid_for(count), kThreads, 0, stream, count, logits, ids, out);
}

void queue_silu_mul(StreamHandle stream, std::int64_t count, float* gate, const float* up) {
  launch("silu_mul", silu_mul, grid_for(count), kThreads, 0, stream, count, gate, up);
}

void queue_quantize(StreamHandle stream, int rows, const float* x, const ActivationView& out) {
  launch("quantize", quantize, grid_for(rows, out), kThreads, 0, stream, rows, x, out);
}

void queue_silu_mul_quantize(StreamHandle stream, int rows, const float* gate, const float* up,
                             const ActivationView& out) {
  launch("silu_mul_quantize", silu_mul_quantize, grid_for(rows, out), kThreads, 0, stream, rows,
         gate, up, out);
}

}  // namespace specdec::cuda
