// Norms, element-wise operations and attention: part of kernels.inl.

// exp_f32 of core/math.h in 16 lanes: the very same operations.
SPECDEC_INLINE F32x16 f_exp(F32x16 x) {
  using namespace exp_f32_constants;
  const F32x16 round = f_set1(kRound), clamped = f_min(x, f_set1(kMax));
  const F32x16 shifted = f_add(f_mul(clamped, f_set1(kLog2e)), round);
  const F32x16 n = f_sub(shifted, round);
  const F32x16 r = f_sub(f_sub(clamped, f_mul(n, f_set1(kLn2Hi))), f_mul(n, f_set1(kLn2Lo)));
  F32x16 p = f_set1(kP0);
  p = f_add(f_mul(p, r), f_set1(kP1));
  p = f_add(f_mul(p, r), f_set1(kP2));
  p = f_add(f_mul(p, r), f_set1(kP3));
  p = f_add(f_mul(p, r), f_set1(kP4));
  p = f_add(f_mul(p, r), f_set1(kP5));
  const F32x16 y = f_add(f_add(f_mul(p, f_mul(r, r)), r), f_set1(1.0f));
  return f_where_ge(x, kMin, f_add_exponent(y, shifted), f_zero());
}

// out[k] = (x[k] * inv) * gain[k], inv = 1 / sqrt(sum / n + eps); lane j of the sum takes k = j mod
// 16 in order, by fused multiply-adds. x, gain, out [n]; out may be x
void rms_norm(const float* x, const float* gain, size_t n, float eps, float* out) {
  F32x16 sum = f_zero();
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 v = f_load_n(x + i, count);
    sum = f_fma(v, v, sum);
  });
  const float mean = f_sum(sum) / static_cast<float>(n);
  const F32x16 inv = f_set1(1.0f / __builtin_sqrtf(mean + eps));
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 scaled = f_mul(f_load_n(x + i, count), inv);
    f_store_n(out + i, f_mul(scaled, f_load_n(gain + i, count)), count);
  });
}

// silu(g) = g / (1 + exp(-g)). gate, up, out [n]
void silu_mul(const float* gate, const float* up, size_t n, float* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 g = f_load_n(gate + i, count);
    const F32x16 e = f_exp(f_sub(f_zero(), g));
    const F32x16 silu = f_div(g, f_add(f_set1(1.0f), e));
    f_store_n(out + i, f_mul(silu, f_load_n(up + i, count)), count);
  });
}

void add(float* x, const float* y, size_t n) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_n(x + i, f_add(f_load_n(x + i, count), f_load_n(y + i, count)), count);
  });
}

// x * (c, c) + swapped x * (-s, s): a product with -s is the negative of the one with s, so this
// rounds like the formula.
SPECDEC_INLINE void rotate_interleaved(float* head, const float* cos_sin, size_t pairs) {
  for_each_16(2 * pairs, [&](size_t i, size_t n) SPECDEC_LAMBDA_INLINE {
    const F32x16 x = f_load_n(head + i, n), cs = f_load_n(cos_sin + i, n);
    const F32x16 straight = f_mul(x, f_spread_even(cs));
    const F32x16 crossed = f_mul(f_swap_pairs(x), f_negate_even(f_spread_odd(cs)));
    f_store_n(head + i, f_add(straight, crossed), n);
  });
}

SPECDEC_INLINE void rotate_halves(float* head, const float* cos_sin, size_t pairs) {
  for_each_16(pairs, [&](size_t i, size_t n) SPECDEC_LAMBDA_INLINE {
    const size_t low = 2 * n < 16 ? 2 * n : 16, high = 2 * n - low;
    const F32x16 a = f_load_n(cos_sin + 2 * i, low);
    const F32x16 b = high > 0 ? f_load_n(cos_sin + 2 * i + 16, high) : f_zero();
    const F32x16 cos = f_take_even(a, b), sin = f_take_odd(a, b);
    const F32x16 x0 = f_load_n(head + i, n), x1 = f_load_n(head + pairs + i, n);
    f_store_n(head + i, f_sub(f_mul(x0, cos), f_mul(x1, sin)), n);
    f_store_n(head + pairs + i, f_add(f_mul(x0, sin), f_mul(x1, cos)), n);
  });
}

void rotate(float* head, const float* cos_sin, size_t pairs, bool interleaved) {
  if (interleaved) {
    rotate_interleaved(head, cos_sin, pairs);
  } else {
    rotate_halves(head, cos_sin, pairs);
  }
}

void store_f16(const float* x, size_t n, uint16_t* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_f16_n(out + i, f_load_n(x + i, count), count);
  });
}

void load_f16(const uint16_t* x, size_t n, float* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const uint8_t* p = reinterpret_cast<const uint8_t*>(x + i);
    f_store_n(out + i, count == 16 ? f_load_f16(p) : f_load_f16_n(p, count), count);
  });
}

// As an activation block is quantised, with d as a half.
void store_q8(const float* x, size_t blocks, uint8_t* out) {
  for (size_t b = 0; b < blocks; ++b, x += 32, out += kQ8Bytes) {
    ActBlock block;
    quantize_row(x, 1, ActKind{0, false, false}, &block, 1);
    uint16_t d;
    f_store_f16_n(&d, f_set1(block.d), 1);
    __builtin_memcpy(out, &d, sizeof(d));
    __builtin_memcpy(out + 2, block.q, sizeof(block.q));
  }
}

// d * q
void load_q8(const uint8_t* x, size_t blocks, float* out) {
  for (size_t b = 0; b < blocks; ++b, x += kQ8Bytes, out += 32) {
    const F32x16 d = f_set1_f16(x);
    f_store(out, f_mul(d, f_load_i8(x + 2)));
    f_store(out + 16, f_mul(d, f_load_i8(x + 18)));
  }
}

// --- Attention
// ----------------------------------------------------------------------------------------

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

// See KernelTable. Tiles of 16 x 16 in registers.
template <class Row>
SPECDEC_INLINE void transpose_tiles(const uint8_t* keys, size_t rows, size_t head_dim, float* out,
                                    size_t stride) {
  for (size_t r = 0; r < rows; r += 16) {
    for (size_t d = 0; d < head_dim; d += 16) {
      const size_t n = head_dim - d < 16 ? head_dim - d : 16;
      F32x16 tile[16];
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) {
        const uint8_t* row = keys + (r + i) * Row::bytes(head_dim);
        tile[i] = r + i < rows ? Row::load(row, d, n) : f_zero();
      }
      f_transpose(tile);
#pragma GCC unroll 16
      for (size_t i = 0; i < 16; ++i) {
        if (i < n) f_store(out + (d + i) * stride + r, tile[i]);
      }
    }
  }
}

void transpose_keys(const void* keys, CacheRows type, size_t rows, size_t head_dim, float* out,
                    size_t stride) {
  const uint8_t* p = static_cast<const uint8_t*>(keys);
  switch (type) {
    case CacheRows::kF32:
      return transpose_tiles<RowF32>(p, rows, head_dim, out, stride);
    case CacheRows::kF16:
      return transpose_tiles<RowF16>(p, rows, head_dim, out, stride);
    case CacheRows::kQ8:
      return transpose_tiles<RowQ8>(p, rows, head_dim, out, stride);
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

// weights[t] = exp(scores[t] - max); lane j of the sum takes t = j mod 16 in order, then the fixed
// tree.
SoftmaxState attention_softmax(float* scores, int count) {
  const size_t n = static_cast<size_t>(count);
  F32x16 max = f_set1(scores[0]);
  for_each_16(n, [&](size_t i, size_t lanes) SPECDEC_LAMBDA_INLINE {
    const uint32_t present = (1u << lanes) - 1u;
    max = f_max(f_where_bits(present, f_load_n(scores + i, lanes), max), max);
  });
  SoftmaxState state;
  state.max = f_hmax(max);
  F32x16 sum = f_zero();
  for_each_16(n, [&](size_t i, size_t lanes) SPECDEC_LAMBDA_INLINE {
    const F32x16 e = f_exp(f_sub(f_load_n(scores + i, lanes), f_set1(state.max)));
    sum = f_add(sum, f_where_bits((1u << lanes) - 1u, e, f_zero()));
    f_store_n(scores + i, e, lanes);
  });
  state.sum = f_sum(sum);
  return state;
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
