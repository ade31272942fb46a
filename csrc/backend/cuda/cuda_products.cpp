// The operations that multiply by weights.
#include <array>
#include <cstdint>

#include "backend/cuda/block_decode.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/product_input.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// The biases of q, k and v, then the norms of q and k. q [M, H, D], k and v [M, Hkv, D]
void bias_and_norm(CudaWorkspace& ws, int rows, const QkvWeights& weights,
                   const AttentionShape& shape, float* q, float* k, float* v) {
  const int q_width = shape.heads * shape.head_dim, kv_width = shape.kv_heads * shape.head_dim;
  const auto add = [&](float* x, int cols, const float* bias) {
    if (bias != nullptr) queue_add_bias(ws.stream(), rows, cols, x, bias);
  };
  add(q, q_width, weights.q_bias);
  add(k, kv_width, weights.k_bias);
  add(v, kv_width, weights.v_bias);
  if (weights.norm == QkNorm::kNone) return;
  const bool per_head = weights.norm == QkNorm::kPerHead;
  const auto norm = [&](float* x, int heads, const float* gain) {
    const int parts = per_head ? heads : 1;
    queue_rms_norm(ws.stream(), rows * parts, heads * shape.head_dim / parts, x, gain,
                   weights.norm_eps, x, {});
  };
  norm(q, shape.heads, weights.q_gain);
  norm(k, shape.kv_heads, weights.k_gain);
}

}  // namespace

ActivationView CudaWorkspace::activations(int count, std::size_t cols) {
  const std::size_t columns = static_cast<std::size_t>(octets_of(count)) * kOctet;
  const std::size_t blocks = cols / kBlockValues;
  return {get<std::int8_t>(Area::kActValues, columns * cols),
          get<ColumnScales>(Area::kActScales, columns * blocks),
          get<ColumnHalves>(Area::kActHalves, columns * blocks), static_cast<int>(blocks)};
}

// The int8 form comes along: the product that follows, if it is a quantised one, needs no kernel of
// its own for it.
void CudaBackend::rms_norm(Workspace& workspace, std::int32_t rows, std::int32_t cols,
                           const float* x, const float* gain, float eps, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows <= 0) return;
  ActivationView quantized;
  if (cols % kBlockValues == 0) quantized = ws.activations(rows, static_cast<std::size_t>(cols));
  queue_rms_norm(ws.stream(), rows, cols, x, gain, eps, out, quantized);
  ws.leave_prepared({out, rows, quantized, uploads_});
}

void CudaBackend::matmul(Workspace& workspace, std::int32_t rows, const float* x,
                         const Weight& weight, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0)
    ProductInput(ws, columns_of(rows), x, uploads_).multiply(std::array{Product{&weight, out}});
}

void CudaBackend::qkv_rope_store(Workspace& workspace, const Pass& pass, std::int32_t layer,
                                 const float* x, const QkvWeights& weights,
                                 const AttentionShape& shape, float* q_out) const {
  SPECDEC_CHECK(shape.head_dim <= kMaxHeadDim, "heads of ", shape.head_dim);
  CudaWorkspace& ws = use(workspace);
  if (pass.rows <= 0) return;
  const std::size_t kv_width = weights.k->rows();  // Hkv * D
  float* keys = ws.get<float>(Area::kKeys, static_cast<std::size_t>(pass.rows) * kv_width);
  float* values = ws.get<float>(Area::kValues, static_cast<std::size_t>(pass.rows) * kv_width);
  ProductInput(ws, columns_of(pass.rows), x, uploads_)
      .multiply(std::array{Product{weights.q, q_out}, Product{weights.k, keys},
                           Product{weights.v, values}});
  bias_and_norm(ws, pass.rows, weights, shape, q_out, keys, values);
  ws.check_pass(pass);
  const RotaryShape rotary{shape.heads, shape.kv_heads, shape.head_dim, shape.rope_dims,
                           shape.rope_layout == RopeLayout::kInterleaved};
  for (std::int32_t i = 0; i < pass.segment_count; ++i) {
    const Segment& segment = pass.segments[i];
    if (segment.rows <= 0) continue;
    const KvCacheView& cache = segment.cache;
    const std::size_t at = cache.head_offset(layer, 0);
    const CacheTarget target{cache.dtype,
                             reinterpret_cast<std::uint8_t*>(cache.keys + at),
                             reinterpret_cast<std::uint8_t*>(cache.values + at),
                             ws.segments[static_cast<std::size_t>(i)].base,
                             static_cast<std::int64_t>(cache.head_offset(0, 1)),
                             static_cast<int>(cache.row_bytes())};
    const auto row = static_cast<std::size_t>(segment.first_row);
    queue_rotate_and_store(ws.stream(), segment.rows, rotary,
                           q_out + row * static_cast<std::size_t>(shape.heads * shape.head_dim),
                           keys + row * kv_width, values + row * kv_width,
                           pass.rope_cos_sin + row * static_cast<std::size_t>(shape.rope_dims),
                           target);
  }
}

}  // namespace specdec::cuda
