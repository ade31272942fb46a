// The fused parts of a transformer layer: q, k and v with rotation and cache store, and the gated
// MLP. Each quantises its input once and runs its products in as few parallel regions as it can.
#include <algorithm>
#include <cstring>

#include "backend/cache_row.h"
#include "backend/cpu/cpu_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

// Can the two weights use one preparation of their common input?
bool same_input(const CpuWeight& a, const CpuWeight& b) {
  if (a.layout() == nullptr || b.layout() == nullptr) return a.layout() == b.layout();
  const ActKind &x = a.layout()->act, &y = b.layout()->act;
  return x.zero_point == y.zero_point && x.halves == y.halves && x.sums == y.sums;
}

// One segment's freshly computed rows and where they go.
struct StoreRows {
  const KernelTable& kernels;
  const Pass& pass;
  const Segment& segment;
  const AttentionShape& shape;
  std::int32_t layer;
  float* q;             // [M, H, D]
  float* keys;          // [M, Hkv, D]
  const float* values;  // [M, Hkv, D]

  // Rotates q and k of segment row i and writes k and v to the cache.
  void operator()(std::size_t i) const {
    const KvCacheView& cache = segment.cache;
    const std::size_t row = static_cast<std::size_t>(segment.first_row) + i;
    const auto d = static_cast<std::size_t>(shape.head_dim);
    const auto heads = static_cast<std::size_t>(shape.heads);
    const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
    const float* cos_sin = pass.rope_cos_sin + row * static_cast<std::size_t>(shape.rope_dims);
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
  void rotate(float* head, const float* cos_sin) const {
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

void CpuBackend::prepare_inputs(CpuWorkspace& ws, std::size_t rows, const float* x, MatmulJob* jobs,
                                std::size_t job_count) const {
  const Scratch areas[3] = {Scratch::kActs, Scratch::kMoreActs, Scratch::kLastActs};
  for (std::size_t j = 0; j < job_count; ++j) {
    std::size_t i = 0;
    while (i < j && !same_input(*jobs[i].weight, *jobs[j].weight)) ++i;
    if (i < j) {
      jobs[j].x = jobs[i].x;
      jobs[j].acts = jobs[i].acts;
    } else {
      prepare_input(ws, areas[j], rows, x, &jobs[j]);
    }
  }
}

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

  MatmulJob jobs[3] = {{&as_cpu(*weights.q), nullptr, nullptr, q_out, q_dim, 0},
                       {&as_cpu(*weights.k), nullptr, nullptr, keys, kv_dim, 0},
                       {&as_cpu(*weights.v), nullptr, nullptr, values, kv_dim, 0}};
  for (const MatmulJob& job : jobs) {
    SPECDEC_CHECK(job.weight->rows() == job.out_stride, "a projection of ", job.weight->rows(),
                  " rows for ", job.out_stride);
  }
  prepare_inputs(scratch, m, x, jobs, 3);
  multiply(jobs, 3, m);

  for (std::int32_t s = 0; s < pass.segment_count; ++s) {
    const Segment& segment = pass.segments[s];
    const KvCacheView& cache = segment.cache;
    SPECDEC_CHECK(is_cache_dtype(cache.dtype), "a cache of ", dtype_info(cache.dtype).name);
    SPECDEC_CHECK(segment.base + segment.rows <= cache.capacity, "cache of ", cache.capacity,
                  " positions for ", segment.base + segment.rows);
    const StoreRows store{kernels_, pass, segment, shape, layer, q_out, keys, values};
    const auto rows = static_cast<std::size_t>(segment.rows);
    for_rows(rows, rows * (q_dim + 2 * kv_dim), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) store(i);
    });
  }
}

void CpuBackend::gated_mlp(Workspace& ws, std::int32_t rows, const float* x,
                           const MlpWeights& weights, float* out) const {
  if (rows <= 0) return;
  SPECDEC_CHECK(weights.activation == Activation::kSilu, "unknown activation");
  CpuWorkspace& scratch = as_cpu(ws);
  const auto m = static_cast<std::size_t>(rows);
  const CpuWeight &gate = as_cpu(*weights.gate), &up = as_cpu(*weights.up);
  const CpuWeight& down = as_cpu(*weights.down);
  const std::size_t hidden_dim = gate.rows();
  SPECDEC_CHECK(up.rows() == hidden_dim && down.cols() == hidden_dim, "an MLP of ", hidden_dim,
                ", ", up.rows(), " and ", down.cols(), " features");

  MatmulJob inputs[2] = {{&gate, nullptr, nullptr, nullptr, 0, 0},
                         {&up, nullptr, nullptr, nullptr, 0, 0}};
  prepare_inputs(scratch, m, x, inputs, 2);
  const bool packed_down = down.layout() != nullptr;
  const std::size_t down_blocks = down.blocks();
  ActBlock* acts =
      packed_down ? scratch.get<ActBlock>(Scratch::kHiddenActs, m * down_blocks) : nullptr;
  float* hidden = packed_down ? nullptr : scratch.get<float>(Scratch::kHidden, m * hidden_dim);

  // A task computes whole blocks of 32 hidden features, so it can quantise them for `down` itself.
  static_assert(kGroupRows % kActBlockSize == 0);
  const std::size_t step = task_groups(gate.groups(), kGroupRows * 2 * gate.source_row_bytes());
  const std::size_t width = step * kGroupRows;
  const ColumnTiles tiles(m, static_cast<std::size_t>(kernels_.tile_cols));
  pool_->parallel_for((gate.groups() + step - 1) / step, [&](std::size_t task, int slot) {
    const std::size_t begin = task * step, end = std::min(begin + step, gate.groups());
    const std::size_t first = begin * kGroupRows;
    const std::size_t count = std::min(end * kGroupRows, hidden_dim) - first;
    float* gate_out = scratch.get_for_thread<float>(slot, 2 * m * width);
    float* up_out = gate_out + m * width;
    MatmulJob g = inputs[0], u = inputs[1];
    g.out = gate_out;
    u.out = up_out;
    g.out_stride = u.out_stride = width;
    g.first_row = u.first_row = first;
    multiply_groups(g, m, begin, end);
    multiply_groups(u, m, begin, end);
    for (std::size_t tile = 0; tile < tiles.count; ++tile) {
      for (std::size_t c = 0; c < tiles.width(tile); ++c) {
        const std::size_t row = tiles.first(tile) + c;
        float* h = packed_down ? gate_out + row * width : hidden + row * hidden_dim + first;
        kernels_.silu_mul(gate_out + row * width, up_out + row * width, count, h);
        if (!packed_down) continue;
        ActBlock* block =
            acts + tiles.first(tile) * down_blocks + first / kActBlockSize * tiles.width(tile) + c;
        kernels_.quantize_row(h, count / kActBlockSize, down.layout()->act, block,
                              tiles.width(tile));
      }
    }
  });
  MatmulJob job{&down, nullptr, acts, out, down.rows(), 0};
  if (!packed_down) prepare_input(scratch, Scratch::kHiddenActs, m, hidden, &job);
  multiply(&job, 1, m);
}

}  // namespace specdec
