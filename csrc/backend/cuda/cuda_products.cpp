// The operations that multiply by weights.
#include "backend/cuda/block_decode.h"
#include "backend/cuda/cuda_backend.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// The input x [rows, K] of products, in the forms that their weights want; made when first needed.
class Input {
 public:
  Input(CudaWorkspace& ws, int rows, const float* x) : ws_(ws), rows_(rows), x_(x) {}

  // out [rows, N] = x W^T
  void multiply(const Weight& weight, float* out) {
    const DeviceWeight& w = as_device(weight);
    if (is_quantized(w.dtype())) {
      queue_multiply(ws_.stream(), w.dtype(), w.quantized(), quantized(w.cols()), rows_, out);
    } else {
      const std::size_t value_bytes = dtype_info(w.dtype()).block_bytes;
      queue_multiply(ws_.stream(), w.dtype(), w.floats(),
                     arranged(w.cols(), values_per_lane(value_bytes)), rows_, out);
    }
  }

 private:
  ActivationView quantized(std::size_t cols) {
    if (quantized_.values != nullptr) return quantized_;
    const auto rows = static_cast<std::size_t>(rows_);
    const std::size_t blocks = cols / kBlockValues;
    auto* values = ws_.get<std::int8_t>(Area::kActValues, rows * cols);
    auto* d = ws_.get<float>(Area::kActScales, rows * blocks);
    auto* sums = ws_.get<int>(Area::kActSums, rows * blocks * 2);
    queue_quantize(ws_.stream(), rows_, static_cast<int>(blocks), x_, values, d, sums);
    quantized_ = {values, d, sums};
    return quantized_;
  }

  const float* arranged(std::size_t cols, int per_lane) {
    if (per_lane_ == per_lane) return arranged_;
    const auto k = static_cast<int>(cols);
    const auto padded = static_cast<std::size_t>(runs_of(k, per_lane) * kVirtualLanes * per_lane);
    float* out = ws_.get<float>(Area::kArranged, static_cast<std::size_t>(rows_) * padded);
    queue_arrange(ws_.stream(), rows_, k, per_lane, x_, out);
    per_lane_ = per_lane;
    arranged_ = out;
    return out;
  }

  CudaWorkspace& ws_;
  int rows_;
  const float* x_;
  ActivationView quantized_;
  int per_lane_ = 0;  // of arranged_
  const float* arranged_ = nullptr;
};

}  // namespace

void CudaBackend::matmul(Workspace& workspace, std::int32_t rows, const float* x,
                         const Weight& weight, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0) Input(ws, rows, x).multiply(weight, out);
}

void CudaBackend::gated_mlp(Workspace& workspace, std::int32_t rows, const float* x,
                            const MlpWeights& weights, float* out) const {
  SPECDEC_CHECK(weights.activation == Activation::kSilu, "unknown activation");
  CudaWorkspace& ws = use(workspace);
  if (rows <= 0) return;
  const std::size_t count = static_cast<std::size_t>(rows) * weights.gate->rows();
  float* gate = ws.get<float>(Area::kGate, count);  // [M, F]
  float* up = ws.get<float>(Area::kUp, count);
  Input input(ws, rows, x);
  input.multiply(*weights.gate, gate);
  input.multiply(*weights.up, up);
  queue_silu_mul(ws.stream(), static_cast<std::int64_t>(count), gate, up);
  Input(ws, rows, gate).multiply(*weights.down, out);
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
  Input input(ws, pass.rows, x);
  input.multiply(*weights.q, q_out);
  input.multiply(*weights.k, keys);
  input.multiply(*weights.v, values);
  const RotaryShape rotary{shape.heads, shape.kv_heads, shape.head_dim, shape.rope_dims,
                           shape.rope_layout == RopeLayout::kInterleaved};
  for (std::int32_t i = 0; i < pass.segment_count; ++i) {
    const Segment& segment = pass.segments[i];
    if (segment.rows <= 0) continue;
    const KvCacheView& cache = segment.cache;
    const std::size_t at = cache.row_offset(layer, 0, segment.base);
    const CacheTarget target{cache.dtype, reinterpret_cast<std::uint8_t*>(cache.keys + at),
                             reinterpret_cast<std::uint8_t*>(cache.values + at),
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
