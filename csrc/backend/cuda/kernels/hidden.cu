// The hidden features of an MLP: biases, activation and gating of what the products with gate and
// up gave, as floats or as the int8 input of the product with down.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/quantize.cuh"
#include "backend/cuda/launch.h"
#include "core/math.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 256;

// silu(g) = g / (1 + exp(-g)); see Activation
__device__ __forceinline__ float activated(Activation activation, float g, float u) {
  switch (activation) {
    case Activation::kSilu:
      return g / (1.0f + exp_f32(0.0f - g)) * u;
    case Activation::kGelu:
      return gelu_f32(g) * u;
    case Activation::kClampedSwiglu:
      return clamped_swiglu_f32(g, u);
  }
  return 0.0f;
}

// Feature k of F of a column; 0 where the column has no row, whose products nobody wrote.
__device__ __forceinline__ float hidden_value(const Hidden& hidden, const Columns& columns,
                                              int column, int features, int k) {
  if (source_row(columns, column) < 0) return 0.0f;
  const std::size_t at = static_cast<std::size_t>(column) * features + k;
  const int expert = columns.sources == nullptr ? 0 : columns.sources[column].expert;
  const std::size_t bias_at = static_cast<std::size_t>(expert) * features + k;
  float u = hidden.up[at];
  if (hidden.up_bias != nullptr) u = u + hidden.up_bias[bias_at];
  if (hidden.gate == nullptr) return gelu_f32(u);
  float g = hidden.gate[at];
  if (hidden.gate_bias != nullptr) g = g + hidden.gate_bias[bias_at];
  return activated(hidden.activation, g, u);
}

// out [columns, F], may be hidden.up
__global__ void __launch_bounds__(kThreads)
    activate(Columns columns, int features, Hidden hidden, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(columns.count) * features) return;
  out[i] = hidden_value(hidden, columns, static_cast<int>(i / features), features,
                        static_cast<int>(i % features));
}

__global__ void __launch_bounds__(kThreads)
    activate_quantize(Columns columns, Hidden hidden, ActivationView out) {
  const BlockPlace to = place_of_warp(out, kThreads);
  if (to.column >= padded_columns(columns)) return;  // whole warps
  store_quantized(out, to.column, to.block,
                  hidden_value(hidden, columns, to.column, out.blocks * kBlockValues,
                               to.block * kBlockValues + lane_of_warp()));
}

}  // namespace

void queue_activate(StreamHandle stream, const Columns& columns, int features, const Hidden& hidden,
                    float* out) {
  const auto count = static_cast<std::size_t>(columns.count) * static_cast<std::size_t>(features);
  launch("activate", activate, {blocks_for(count, kThreads)}, kThreads, 0, stream, columns,
         features, hidden, out);
}

void queue_activate_quantize(StreamHandle stream, const Columns& columns, const Hidden& hidden,
                             const ActivationView& out) {
  launch("activate_quantize", activate_quantize, {warp_blocks(columns, out, kThreads)}, kThreads, 0,
         stream, columns, hidden, out);
}

}  // namespace specdec::cuda
