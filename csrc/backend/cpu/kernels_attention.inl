// Attention over one chunk of the cache: part of kernels.inl.

// n <= 16 elements of a cache row from element d on.
struct RowF32 {
  static SPECDEC_INLINE size_t bytes(size_t head_dim) { return 4 * head_dim; }
  static SPECDEC_INLINE F32x16 load(const uint8_t* row, size_t d, size_t n) {
    return f_load_n(reinterpret_cast<const float*>(row + 4 * d), n);
  }
};
struct RowF16 {
  static SPECDEC_INLINE size_t bytes(size_t head_dim) { return 2 * head_dim; }
  static SPECDEC_INLINE F32x16 load(const uint8_t* row, size_t d, size_t n) {
    return n == 16 ? f_load_f16(row + 2 * d) : f_load_f16_n(row + 2 * d, n);
  }
};
struct RowQ8 {
  static SPECDEC_INLINE size_t bytes(size_t head_dim) { return head_dim / 32 * kQ8Bytes; }
  static SPECDEC_INLINE F32x16 load(const uint8_t* row, size_t d, size_t) {
    const uint8_t* block = row + d / 32 * kQ8Bytes;
    return f_mul(f_set1_f16(block), f_load_i8(block + 2 + d % 32));
  }
};

// Asks for `bytes` that will be read soon.
SPECDEC_INLINE void prefetch_bytes(const uint8_t* p, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Tiles of 16 x 16 in registers.
template <class Row>
SPECDEC_INLINE void transpose_tiles(const uint8_t* keys, size_t rows, size_t head_dim, size_t ahead,
                                    float* out, size_t stride) {
  const size_t bytes = Row::bytes(head_dim);
  for (size_t r = 0; r < rows; r += 16) {
    if (ahead > 0) prefetch_bytes(keys + r * bytes + ahead, 16 * bytes);
    for (size_t d = 0; d < head_dim; d += 16) {
      const size_t n = head_dim - d < 16 ? head_dim - d : 16;
      F32x16 tile[16];
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) {
        tile[i] = r + i < rows ? Row::load(keys + (r + i) * bytes, d, n) : f_zero();
      }
      f_transpose(tile);
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) {
        if (i < n) f_store(out + (d + i) * stride + r, tile[i]);
      }
    }
  }
}

void transpose_keys(const void* keys, CacheRows type, size_t rows, size_t head_dim, size_t ahead,
                    float* out, size_t stride) {
  const uint8_t* p = static_cast<const uint8_t*>(keys);
  switch (type) {
    case CacheRows::kF32:
      return transpose_tiles<RowF32>(p, rows, head_dim, ahead, out, stride);
    case CacheRows::kF16:
      return transpose_tiles<RowF16>(p, rows, head_dim, ahead, out, stride);
    case CacheRows::kQ8:
      return transpose_tiles<RowQ8>(p, rows, head_dim, ahead, out, stride);
  }
}

// The rows are one run of numbers, count of them.
template <class Row>
SPECDEC_INLINE void load_rows(const uint8_t* values, size_t count, size_t ahead, float* out) {
  constexpr size_t kStep = 64;
  const size_t step_bytes = Row::bytes(kStep);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    if (ahead > 0) prefetch_bytes(values + Row::bytes(i) + ahead, step_bytes);
#pragma GCC unroll 4
    for (size_t d = i; d < i + kStep; d += 16) f_store(out + d, Row::load(values, d, 16));
  }
  for (; i < count; i += 16) {
    const size_t n = count - i < 16 ? count - i : 16;
    f_store_n(out + i, Row::load(values, i, n), n);
  }
}

void load_values(const void* values, CacheRows type, size_t rows, size_t head_dim, size_t ahead,
                 float* out) {
  const uint8_t* p = static_cast<const uint8_t*>(values);
  switch (type) {
    case CacheRows::kF32:
      return load_rows<RowF32>(p, rows * head_dim, ahead, out);
    case CacheRows::kF16:
      return load_rows<RowF16>(p, rows * head_dim, ahead, out);
    case CacheRows::kQ8:
      return load_rows<RowQ8>(p, rows * head_dim, ahead, out);
  }
}

template <int kVectors>
struct KeyDots {
  F32x16 v[kVectors];
};

// A dot product on 16 virtual lanes, many keys at once: lane kLane of the dot takes d = kLane mod
// 16 in order by fused multiply-adds, and kSpan walks the fixed tree (lanes 8 apart first) without
// ever holding all 16 lanes. q [D], keys [D, stride]
template <int kLane, int kSpan, int kVectors>
SPECDEC_INLINE KeyDots<kVectors> key_dots(const float* q, const float* keys, size_t stride,
                                          size_t head_dim) {
  KeyDots<kVectors> sum;
  if constexpr (kSpan == 16) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum.v[v] = f_zero();
    for (size_t d = kLane; d < head_dim; d += 16) {
      const F32x16 x = f_set1(q[d]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sum.v[v] = f_fma(x, f_load(keys + d * stride + 16 * v), sum.v[v]);
      }
    }
  } else {
    sum = key_dots<kLane, kSpan * 2, kVectors>(q, keys, stride, head_dim);
    const KeyDots<kVectors> other =
        key_dots<kLane + kSpan, kSpan * 2, kVectors>(q, keys, stride, head_dim);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum.v[v] = f_add(sum.v[v], other.v[v]);
  }
  return sum;
}

template <int kVectors>
SPECDEC_INLINE void score_keys(const float* q, const float* keys, size_t stride, size_t head_dim,
                               float scale, float* scores) {
  const KeyDots<kVectors> dots = key_dots<0, 1, kVectors>(q, keys, stride, head_dim);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) f_store(scores + 16 * v, f_mul(f_set1(scale), dots.v[v]));
}

void attention_scores(const float* q, const float* keys, size_t stride, size_t rows,
                      size_t head_dim, float scale, float* scores) {
  size_t r = 0;
  for (; r + 16 * (kScoreVecs - 1) < rows; r += 16 * kScoreVecs) {
    score_keys<kScoreVecs>(q, keys + r, stride, head_dim, scale, scores + r);
  }
  for (; r < rows; r += 16) score_keys<1>(q, keys + r, stride, head_dim, scale, scores + r);
}

SPECDEC_INLINE float largest_score(const float* scores, size_t n) {
  F32x16 max = f_set1(scores[0]);
  for_each_16(n, [&](size_t i, size_t lanes) SPECDEC_LAMBDA_INLINE {
    const uint32_t present = (1u << lanes) - 1u;
    max = f_max(f_where_bits(present, f_load_n(scores + i, lanes), max), max);
  });
  return f_hmax(max);
}

// scores[t] becomes exp(scores[t] - max); returns the sums of the lanes.
SPECDEC_INLINE F32x16 exp_scores(float* scores, size_t n, float max) {
  F32x16 sum = f_zero();
  for_each_16(n, [&](size_t i, size_t lanes) SPECDEC_LAMBDA_INLINE {
    const F32x16 e = f_exp(f_sub(f_load_n(scores + i, lanes), f_set1(max)));
    sum = f_add(sum, f_where_bits((1u << lanes) - 1u, e, f_zero()));
    f_store_n(scores + i, e, lanes);
  });
  return sum;
}

// weights[t] = exp(scores[t] - max); lane j of the sum takes t = j mod 16 in order, then the fixed
// tree. One step for all queries at a time: the chains of one query would leave the units idle.
void attention_softmax(float* scores, int queries, int count, SoftmaxState* states) {
  const size_t n = static_cast<size_t>(count);
  F32x16 sums[kValueQueries];
  for (int i = 0; i < queries; ++i) {
    states[i].max = largest_score(scores + i * kAttentionChunk, n);
  }
  for (int i = 0; i < queries; ++i) {
    sums[i] = exp_scores(scores + i * kAttentionChunk, n, states[i].max);
  }
  for (int i = 0; i < queries; ++i) states[i].sum = f_sum(sums[i]);
}

// acc[i, d] = fma chain over t in order. Several queries at once hide the latency of their chains
// and share the loads. weights [kQueries, kAttentionChunk], index [count], values [*, D], acc
// [kQueries, D]
template <int kQueries, int kVectors>
SPECDEC_INLINE void weighted_values(const float* weights, const float* values, const int32_t* index,
                                    int count, size_t head_dim, float* acc) {
  F32x16 sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = f_zero();
  }
  for (int t = 0; t < count; ++t) {
    const float* value = values + static_cast<size_t>(index[t]) * head_dim;
    F32x16 x[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) x[v] = f_load(value + 16 * v);
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) {
      const F32x16 w = f_set1(weights[i * kAttentionChunk + t]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[i][v] = f_fma(w, x[v], sum[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
    float* out = acc + static_cast<size_t>(i) * head_dim;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) f_store(out + 16 * v, sum[i][v]);
  }
}

// The D mod 16 last elements.
SPECDEC_INLINE void weighted_values_tail(const float* weights, const float* values,
                                         const int32_t* index, int count, size_t head_dim, size_t n,
                                         float* acc) {
  F32x16 sum = f_zero();
  for (int t = 0; t < count; ++t) {
    const float* value = values + static_cast<size_t>(index[t]) * head_dim;
    sum = f_fma(f_set1(weights[t]), f_load_n(value, n), sum);
  }
  f_store_n(acc, sum, n);
}

template <int kQueries>
SPECDEC_INLINE void values_of_queries(const float* weights, const float* values,
                                      const int32_t* index, int count, size_t head_dim,
                                      float* acc) {
  constexpr int kVectors = kValueVecs;
  size_t d = 0;
  for (; d + 16 * kVectors <= head_dim; d += 16 * kVectors) {
    weighted_values<kQueries, kVectors>(weights, values + d, index, count, head_dim, acc + d);
  }
  for (; d + 16 <= head_dim; d += 16) {
    weighted_values<kQueries, 1>(weights, values + d, index, count, head_dim, acc + d);
  }
  if (d == head_dim) return;
  for (int i = 0; i < kQueries; ++i) {
    weighted_values_tail(weights + i * kAttentionChunk, values + d, index, count, head_dim,
                         head_dim - d, acc + static_cast<size_t>(i) * head_dim + d);
  }
}

void attention_values(const float* weights, int queries, const float* values, const int32_t* index,
                      int count, size_t head_dim, float* acc) {
  static_assert(kValueQueries == 4);
  switch (queries) {
    case 1:
      return values_of_queries<1>(weights, values, index, count, head_dim, acc);
    case 2:
      return values_of_queries<2>(weights, values, index, count, head_dim, acc);
    case 3:
      return values_of_queries<3>(weights, values, index, count, head_dim, acc);
    default:
      return values_of_queries<4>(weights, values, index, count, head_dim, acc);
  }
}

// max' = max(state.max, chunk.max); a = exp(state.max - max'), b = exp(chunk.max - max');
// sum' = fma(chunk.sum, b, state.sum * a); acc[d] = fma(chunk_acc[d], b, acc[d] * a). acc,
// chunk_acc [D]
SoftmaxState attention_merge(SoftmaxState state, float* acc, SoftmaxState chunk,
                             const float* chunk_acc, size_t head_dim) {
  const float max = state.max > chunk.max ? state.max : chunk.max;
  float scales[16];
  const F32x16 below = f_where_bits(1, f_set1(state.max - max), f_set1(chunk.max - max));
  f_store(scales, f_exp(below));
  const float a = scales[0], b = scales[1];
  for_each_16(head_dim, [&](size_t i, size_t n) SPECDEC_LAMBDA_INLINE {
    const F32x16 old = f_mul(f_load_n(acc + i, n), f_set1(a));
    f_store_n(acc + i, f_fma(f_load_n(chunk_acc + i, n), f_set1(b), old), n);
  });
  return {max, __builtin_fmaf(chunk.sum, b, state.sum * a)};
}

void divide(const float* acc, float sum, size_t n, float* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_n(out + i, f_div(f_load_n(acc + i, count), f_set1(sum)), count);
  });
}
