// What writes the cache: the fused part of a transformer layer that makes q, k and v (products,
// biases, norms, rotation and cache store; the input is quantised once, and all products run in one
// parallel region), and the gathering of kept rows.
#include <algorithm>
#include <cstring>

#include "backend/cache_row.h"
#include "backend/cpu/cpu_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

// One segment's freshly computed rows and where they go.
struct StoreRows {
  const KernelTable& kernels;
  const Pass& pass;
  const Segment& segment;
  const QkvWeights& weights;
  const AttentionShape& shape;
  std::int32_t layer;
  float* q;       // [M, H, D]
  float* keys;    // [M, Hkv, D]
  float* values;  // [M, Hkv, D]

  // Adds the biases to segment row i, norms and rotates q and k, and writes k and v to the cache.
  void operator()(std::size_t i) const {
    const KvCacheView& cache = segment.cache;
    const std::size_t row = static_cast<std::size_t>(segment.first_row) + i;
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const auto heads = static_cast<std::size_t>(shape.heads);
    const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
    const float* cos_sin = pass.rope_cos_sin + row * static_cast<std::size_t>(shape.rope_dims);
    add_bias(q + row * heads * d, weights.q_bias, heads * d);
    add_bias(keys + row * kv_heads * d, weights.k_bias, kv_heads * d);
    add_bias(values + row * kv_heads * d, weights.v_bias, kv_heads * d);
    norm(q + row * heads * d, weights.q_gain, heads);
    norm(keys + row * kv_heads * d, weights.k_gain, kv_heads);
    for (std::size_t h = 0; h < heads; ++h) rotate(q + (row * heads + h) * d, cos_sin);
    for (std::size_t h = 0; h < kv_heads; ++h) {
      float* key = keys + (row * kv_heads + h) * d;
      rotate(key, cos_sin);
      const std::size_t offset = cache.row_offset(layer, static_cast<std::int32_t>(h),
                                                  segment.base + static_cast<std::int32_t>(i));
      store(key, cache.keys + offset);
      store(values + (row * kv_heads + h) * d, cache.values + offset);
    }
  }

 private:
  void add_bias(float* x, const float* bias, std::size_t count) const {
    if (bias != nullptr) kernels.add(x, bias, count);
  }

  // x [heads, D], in place
  void norm(float* x, const float* gain, std::size_t heads) const {
    if (weights.norm == QkNorm::kNone) return;
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const std::size_t count = weights.norm == QkNorm::kPerHead ? heads : 1;
    const std::size_t size = heads * d / count;
    for (std::size_t i = 0; i < count; ++i, x += size) {
      kernels.rms_norm(x, gain, size, weights.norm_eps, x);
    }
  }

  void rotate(float* head, const float* cos_sin) const {
    if (shape.rope_dims == 0) return;
    kernels.rotate(head, cos_sin, static_cast<std::size_t>(shape.rope_dims) / 2,
                   shape.rope_layout == RopeLayout::kInterleaved);
  }

  void store(const float* row, std::byte* out) const {
    const auto d = static_cast<std::size_t>(shape.head_dim);
    if (segment.cache.dtype == DType::kF32) {
      std::memcpy(out, row, d * sizeof(float));
    } else if (segment.cache.dtype == DType::kQ8_0) {
      kernels.store_q8(row, d / kActBlockSize, reinterpret_cast<std::uint8_t*>(out));
    } else {
      kernels.store_f16(row, d, reinterpret_cast<std::uint16_t*>(out));
    }
  }
};

}  // namespace

void CpuBackend::qkv_rope_store(Workspace& ws, const Pass& pass, std::int32_t layer, const float* x,
                                const QkvWeights& weights, const AttentionShape& shape,
                                float* q_out) const {
  if (pass.rows <= 0) return;
  CpuWorkspace& scratch = as_cpu(ws);
  const auto m = static_cast<std::size_t>(pass.rows);
  const auto d = static_cast<std::size_t>(shape.head_dim);
  const auto q_dim = static_cast<std::size_t>(shape.heads) * d;
  const auto kv_dim = static_cast<std::size_t>(shape.kv_heads) * d;
  float* keys = scratch.get<float>(Scratch::kKeys, m * kv_dim);
  float* values = scratch.get<float>(Scratch::kValues, m * kv_dim);

  MatmulJob jobs[3] = {{&as_cpu(*weights.q), nullptr, nullptr, q_out, q_dim},
                       {&as_cpu(*weights.k), nullptr, nullptr, keys, kv_dim},
                       {&as_cpu(*weights.v), nullptr, nullptr, values, kv_dim}};
  for (const MatmulJob& job : jobs) {
    SPECDEC_CHECK(job.weight->rows() == job.out_stride, "a projection of ", job.weight->rows(),
                  " rows for ", job.out_stride);
  }
  const MatrixRows all{0, 0, m};
  prepare_inputs(scratch, {&all, 1}, x, jobs, 3);
  multiply(jobs, 3, m);

  for (std::int32_t s = 0; s < pass.segment_count; ++s) {
    const Segment& segment = pass.segments[s];
    const KvCacheView& cache = segment.cache;
    SPECDEC_CHECK(is_cache_dtype(cache.dtype), "a cache of ", dtype_info(cache.dtype).name);
    SPECDEC_CHECK(segment.base + segment.rows <= cache.capacity, "cache of ", cache.capacity,
                  " positions for ", segment.base + segment.rows);
    const StoreRows store{kernels_, pass, segment, weights, shape, layer, q_out, keys, values};
    const auto rows = static_cast<std::size_t>(segment.rows);
    for_rows(rows, rows * (q_dim + 2 * kv_dim), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store(i);
    });
  }
}

void CpuBackend::keep_rows(Workspace&, const KvCacheView& cache, std::int32_t base,
                           const std::int32_t* rows, std::int32_t count) const {
  const std::size_t row_bytes = cache.row_bytes();
  for (std::int32_t i = 0; i < count; ++i) {
    SPECDEC_CHECK(
        rows[i] >= i && base + rows[i] < cache.capacity && (i == 0 || rows[i] > rows[i - 1]),
        "kept row ", rows[i], " at place ", i);
  }
  for (std::int32_t layer = 0; layer < cache.layers; ++layer) {
    for (std::int32_t head = 0; head < cache.kv_heads; ++head) {
      const std::size_t offset = cache.row_offset(layer, head, base);
      for (std::int32_t i = 0; i < count; ++i) {
        if (rows[i] == i) continue;
        // Rows ascend and are distinct, so a destination never lies above a source still to be
        // read.
        const std::size_t to = offset + static_cast<std::size_t>(i) * row_bytes;
        const std::size_t from = offset + static_cast<std::size_t>(rows[i]) * row_bytes;
        std::memcpy(cache.keys + to, cache.keys + from, row_bytes);
        std::memcpy(cache.values + to, cache.values + from, row_bytes);
      }
    }
  }
}

}  // namespace specdec
