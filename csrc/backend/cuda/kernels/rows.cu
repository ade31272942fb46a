// Norms and element-wise operations; rows as the int8 input of a product.
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

__global__ void __launch_bounds__(kThreads)
    quantize(Columns columns, const float* x, ActivationView out) {
  const BlockPlace to = place_of_warp(out, kThreads);
  if (to.column >= padded_columns(columns)) return;  // whole warps
  const int row = source_row(columns, to.column);
  store_quantized(out, to.column, to.block, row < 0 ? 0.0f : x[to.value_of(row, out)]);
}

Grid grid_for(std::int64_t count) {
  return {blocks_for(static_cast<std::size_t>(count), kThreads)};
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

void queue_quantize(StreamHandle stream, const Columns& columns, const float* x,
                    const ActivationView& out) {
  launch("quantize", quantize, {warp_blocks(columns, out, kThreads)}, kThreads, 0, stream, columns,
         x, out);
}

}  // namespace specdec::cuda
