// Everything that touches the key/value cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/cache_row.h"
#include "backend/ref/ref_backend.h"
#include "backend/ref/ref_weight.h"
#include "core/dequantize.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec {
namespace {

std::size_t row_offset(const KvCacheView& cache, std::int32_t layer, std::int32_t head,
                       std::int32_t row) {
  SPECDEC_CHECK(row >= 0 && row < cache.capacity, "cache row ", row, " of ", cache.capacity);
  return cache.row_offset(layer, head, row);
}

// A row [D] of the cache as floats, whatever it is stored as.
std::vector<float> load_row(const KvCacheView& cache, const std::byte* row) {
  std::vector<float> values(static_cast<std::size_t>(cache.head_dim));
  dequantize_row(cache.dtype, row, values.data(), values.size());
  return values;
}

void check_cache(const KvCacheView& cache, const AttentionShape& shape, std::int32_t layer) {
  SPECDEC_CHECK(is_cache_dtype(cache.dtype), "a cache of ", dtype_info(cache.dtype).name);
  SPECDEC_CHECK(cache.kv_heads == shape.kv_heads && cache.head_dim == shape.head_dim, "a cache of ",
                cache.kv_heads, " heads of ", cache.head_dim, " for ", shape.kv_heads, " of ",
                shape.head_dim);
  SPECDEC_CHECK(layer >= 0 && layer < cache.layers, "layer ", layer, " of ", cache.layers);
}

// Rotates one head in place: (a, b) -> (a cos - b sin, a sin + b cos) for each pair.
// head [D], cos_sin [rope_dims / 2, 2]
void rotate(double* head, const AttentionShape& shape, const float* cos_sin) {
  const std::int32_t pairs = shape.rope_dims / 2;
  for (std::int32_t i = 0; i < pairs; ++i) {
    const bool interleaved = shape.rope_layout == RopeLayout::kInterleaved;
    double& first = head[interleaved ? 2 * i : i];
    double& second = head[interleaved ? 2 * i + 1 : i + pairs];
    const double cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
    const double a = first, b = second;
    first = a * cos - b * sin;
    second = a * sin + b * cos;
  }
}

// heads [count, D], or one row of all: x / sqrt(mean(x^2) + eps) * gain, in place.
void norm_heads(double* x, std::size_t count, std::size_t size, const float* gain, double eps) {
  for (std::size_t h = 0; h < count; ++h, x += size) {
    double sum = 0.0;
    for (std::size_t d = 0; d < size; ++d) sum += x[d] * x[d];
    const double inv = 1.0 / std::sqrt(sum / static_cast<double>(size) + eps);
    for (std::size_t d = 0; d < size; ++d) x[d] *= inv * static_cast<double>(gain[d]);
  }
}

// q [M, H, D] and k [M, Hkv, D] as the model's norm wants it.
void norm_queries_and_keys(const QkvWeights& weights, const AttentionShape& shape, std::size_t m,
                           double* q, double* k) {
  if (weights.norm == QkNorm::kNone) return;
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t heads = static_cast<std::size_t>(shape.heads);
  const std::size_t kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const double eps = static_cast<double>(weights.norm_eps);
  if (weights.norm == QkNorm::kPerHead) {
    norm_heads(q, m * heads, dim, weights.q_gain, eps);
    norm_heads(k, m * kv_heads, dim, weights.k_gain, eps);
  } else {
    norm_heads(q, m, heads * dim, weights.q_gain, eps);
    norm_heads(k, m, kv_heads * dim, weights.k_gain, eps);
  }
}

// The cache rows that segment row i attends to, in logical order: the prefix, its ancestors by
// depth, itself; the last `window` of them if that is not 0.
std::vector<std::int32_t> visible_rows(const Segment& segment, std::int32_t i,
                                       std::int32_t window) {
  std::vector<std::int32_t> rows;
  for (std::int32_t row = i; row >= 0;) {
    rows.push_back(segment.base + row);
    const std::int32_t parent = segment.is_chain ? row - 1 : segment.parents[row];
    SPECDEC_CHECK(parent < row, "parent ", parent, " of segment row ", row);
    row = parent;
  }
  for (std::int32_t row = segment.base - 1; row >= 0; --row) rows.push_back(row);
  const auto most = static_cast<std::size_t>(window);
  if (most > 0 && rows.size() > most) rows.resize(most);  // the latest stand first here
  std::reverse(rows.begin(), rows.end());
  return rows;
}

// Softmax attention of one query head over `rows` of the cache. q, out [D]
void attend(const KvCacheView& cache, std::int32_t layer, const AttentionShape& shape,
            std::int32_t head, const std::vector<std::int32_t>& rows, const float* q, float* out) {
  const std::int32_t kv_head = head / (shape.heads / shape.kv_heads);
  const auto dim = static_cast<std::size_t>(cache.head_dim);
  std::vector<double> scores;
  for (const std::int32_t row : rows) {
    const std::vector<float> key =
        load_row(cache, cache.keys + row_offset(cache, layer, kv_head, row));
    double dot = 0.0;
    for (std::size_t d = 0; d < dim; ++d) {
      dot += static_cast<double>(q[d]) * static_cast<double>(key[d]);
    }
    const double score = dot * static_cast<double>(shape.scale);
    const double cap = static_cast<double>(shape.score_cap);
    scores.push_back(cap == 0.0 ? score : ref_soft_cap(score, cap));
  }
  double max = *std::max_element(scores.begin(), scores.end());
  std::vector<double> sum(dim, 0.0);
  double total = 0.0;
  if (shape.sinks != nullptr) {
    const double sink = static_cast<double>(shape.sinks[head]);
    max = std::max(max, sink);
    total = exp_f64(sink - max);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double weight = exp_f64(scores[i] - max);
    const std::vector<float> value =
        load_row(cache, cache.values + row_offset(cache, layer, kv_head, rows[i]));
    total += weight;
    for (std::size_t d = 0; d < dim; ++d) {
      sum[d] += weight * static_cast<double>(value[d]);
    }
  }
  for (std::size_t d = 0; d < dim; ++d) out[d] = static_cast<float>(sum[d] / total);
}

}  // namespace

void RefBackend::qkv_rope_store(Workspace&, const Pass& pass, std::int32_t layer, const float* x,
                                const QkvWeights& weights, const AttentionShape& shape,
                                float* q_out) const {
  const auto m = static_cast<std::size_t>(pass.rows),
             dim = static_cast<std::size_t>(shape.head_dim);
  std::vector<double> q = ref_product(m, x, *weights.q, weights.q_bias);        // [M, H, D]
  std::vector<double> k = ref_product(m, x, *weights.k, weights.k_bias);        // [M, Hkv, D]
  const std::vector<double> v = ref_product(m, x, *weights.v, weights.v_bias);  // [M, Hkv, D]
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  SPECDEC_CHECK(q.size() == m * heads * dim && k.size() == m * kv_heads * dim,
                "q and k weights of ", weights.q->rows(), " and ", weights.k->rows(), " rows");
  norm_queries_and_keys(weights, shape, m, q.data(), k.data());
  for (std::size_t i = 0; i < m; ++i) {
    const float* cos_sin = pass.rope_cos_sin + i * static_cast<std::size_t>(shape.rope_dims);
    for (std::size_t h = 0; h < heads; ++h) rotate(&q[(i * heads + h) * dim], shape, cos_sin);
    for (std::size_t h = 0; h < kv_heads; ++h) rotate(&k[(i * kv_heads + h) * dim], shape, cos_sin);
  }
  for (std::size_t i = 0; i < q.size(); ++i) q_out[i] = static_cast<float>(q[i]);

  std::vector<float> key(dim), value(dim);
  for (std::int32_t s = 0; s < pass.segment_count; ++s) {
    const Segment& segment = pass.segments[s];
    const KvCacheView& cache = segment.cache;
    check_cache(cache, shape, layer);
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
        const std::size_t offset = row_offset(cache, layer, h, segment.base + i);
        const std::size_t from = (static_cast<std::size_t>(segment.first_row + i) * kv_heads +
                                  static_cast<std::size_t>(h)) *
                                 dim;
        for (std::size_t d = 0; d < dim; ++d) {
          key[d] = static_cast<float>(k[from + d]);
          value[d] = static_cast<float>(v[from + d]);
        }
        store_cache_row(cache.dtype, key.data(), dim, cache.keys + offset);
        store_cache_row(cache.dtype, value.data(), dim, cache.values + offset);
      }
    }
  }
}

void RefBackend::attention(Workspace&, const Pass& pass, std::int32_t layer, const float* q,
                           const AttentionShape& shape, float* out) const {
  for (std::int32_t s = 0; s < pass.segment_count; ++s) {
    const Segment& segment = pass.segments[s];
    check_cache(segment.cache, shape, layer);
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      const std::vector<std::int32_t> rows = visible_rows(segment, i, shape.window);
      for (std::int32_t h = 0; h < shape.heads; ++h) {
        const std::size_t at = (static_cast<std::size_t>(segment.first_row + i) *
                                    static_cast<std::size_t>(shape.heads) +
                                static_cast<std::size_t>(h)) *
                               static_cast<std::size_t>(shape.head_dim);
        attend(segment.cache, layer, shape, h, rows, q + at, out + at);
      }
    }
  }
}

void RefBackend::keep_rows(Workspace&, const KvCacheView& cache, std::int32_t base,
                           const std::int32_t* rows, std::int32_t count) const {
  const std::size_t bytes = cache.row_bytes();
  for (std::int32_t i = 0; i < count; ++i) {
    // Ascending rows never overwrite a row that is still to be read.
    SPECDEC_CHECK(rows[i] >= i && (i == 0 || rows[i] > rows[i - 1]), "keep_rows: row ", rows[i],
                  " at place ", i, " is not ascending");
    if (rows[i] == i) continue;
    for (std::int32_t layer = 0; layer < cache.layers; ++layer) {
      for (std::int32_t head = 0; head < cache.kv_heads; ++head) {
        const std::size_t to = row_offset(cache, layer, head, base + i);
        const std::size_t from = row_offset(cache, layer, head, base + rows[i]);
        std::memcpy(cache.keys + to, cache.keys + from, bytes);
        std::memcpy(cache.values + to, cache.values + from, bytes);
      }
    }
  }
}

}  // namespace specdec
