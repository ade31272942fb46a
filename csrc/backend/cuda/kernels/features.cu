// What some architectures have beside the operations of rows.cu: other norms, biases, caps.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/launch.h"
#include "core/math.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t element() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

Grid grid_for(std::int64_t count) {
  return {blocks_for(static_cast<std::size_t>(count), kThreads)};
}

// out[k] = ((x[k] - mean) * inv) * gain[k] + bias[k]. Both sums run on 16 lanes, lane j taking k =
// j mod 16 in order. grid: rows
__global__ void __launch_bounds__(kThreads) layer_norm(int cols, const float* x, const float* gain,
                                                       const float* bias, float eps, float* out) {
  SPECDEC_SHARED(float, shared, [2]);
  const int thread = static_cast<int>(threadIdx.x);
  x += static_cast<std::size_t>(blockIdx.x) * cols;
  out += static_cast<std::size_t>(blockIdx.x) * cols;
  if (thread < kWarpLanes) {
    const bool counts = thread < kVirtualLanes;
    float sum = 0.0f, squares = 0.0f;
    for (int k = thread; counts && k < cols; k += kVirtualLanes) sum = sum + x[k];
    const float mean = sum_16_lanes(sum) / static_cast<float>(cols);
    const float shared_mean = __shfl_sync(kFullWarp, mean, 0);
    for (int k = thread; counts && k < cols; k += kVirtualLanes) {
      const float centred = x[k] - shared_mean;
      squares = fmaf(centred, centred, squares);
    }
    const float variance = sum_16_lanes(squares) / static_cast<float>(cols);
    if (thread == 0) {
      shared[0] = mean;
      shared[1] = 1.0f / sqrtf(variance + eps);
    }
  }
  __syncthreads();
  const float mean = shared[0], inv = shared[1];
  __syncthreads();  // out may be x
  for (int k = thread; k < cols; k += kThreads) {
    const float scaled = ((x[k] - mean) * inv) * gain[k];
    out[k] = bias == nullptr ? scaled : scaled + bias[k];
  }
}

__global__ void __launch_bounds__(kThreads)
    add_bias(std::int64_t count, int cols, float* x, const float* bias) {
  const std::int64_t i = element();
  if (i < count) x[i] = x[i] + bias[i % cols];
}

__global__ void __launch_bounds__(kThreads) scale(std::int64_t count, float* x, float factor) {
  const std::int64_t i = element();
  if (i < count) x[i] = x[i] * factor;
}

__global__ void __launch_bounds__(kThreads)
    scale_rows(std::int64_t count, int cols, float* x, const float* factors) {
  const std::int64_t i = element();
  if (i < count) x[i] = x[i] * factors[i / cols];
}

__global__ void __launch_bounds__(kThreads) soft_cap(std::int64_t count, float* x, float cap) {
  const std::int64_t i = element();
  if (i < count) x[i] = cap * tanh_f32(x[i] / cap);
}

__global__ void __launch_bounds__(kThreads)
    add_gated(std::int64_t count, int cols, float* x, const float* y, const float* gate) {
  const std::int64_t i = element();
  if (i >= count) return;
  const float share = 1.0f / (1.0f + exp_f32(0.0f - gate[i / cols]));
  x[i] = fmaf(y[i], share, x[i]);
}

}  // namespace

void queue_layer_norm(StreamHandle stream, int rows, int cols, const float* x, const float* gain,
                      const float* bias, float eps, float* out) {
  launch("layer_norm", layer_norm, {static_cast<unsigned>(rows)}, kThreads, 0, stream, cols, x,
         gain, bias, eps, out);
}

void queue_add_bias(StreamHandle stream, int rows, int cols, float* x, const float* bias) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * cols;
  launch("add_bias", add_bias, grid_for(count), kThreads, 0, stream, count, cols, x, bias);
}

void queue_scale(StreamHandle stream, std::int64_t count, float* x, float factor) {
  launch("scale", scale, grid_for(count), kThreads, 0, stream, count, x, factor);
}

void queue_scale_rows(StreamHandle stream, int rows, int cols, float* x, const float* factors) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * cols;
  launch("scale_rows", scale_rows, grid_for(count), kThreads, 0, stream, count, cols, x, factors);
}

void queue_soft_cap(StreamHandle stream, std::int64_t count, float* x, float cap) {
  launch("soft_cap", soft_cap, grid_for(count), kThreads, 0, stream, count, x, cap);
}

void queue_add_gated(StreamHandle stream, int rows, int cols, float* x, const float* y,
                     const float* gate) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * cols;
  launch("add_gated", add_gated, grid_for(count), kThreads, 0, stream, count, cols, x, y, gate);
}

}  // namespace specdec::cuda
