// Norms, rotation, cache rows and element-wise operations: part of kernels.inl.

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

// out[k] = ((x[k] - mean) * inv) * gain[k] + bias[k], mean = sum / n, inv = 1 / sqrt(sum of (x -
// mean)^2 / n + eps); both sums on 16 lanes, the second by fused multiply-adds. x, gain, out [n],
// bias [n] or null; out may be x
void layer_norm(const float* x, const float* gain, const float* bias, size_t n, float eps,
                float* out) {
  F32x16 sum = f_zero(), squares = f_zero();
  for_each_16(n, [&](size_t i, size_t count)
                     SPECDEC_LAMBDA_INLINE { sum = f_add(sum, f_load_n(x + i, count)); });
  const F32x16 mean = f_set1(f_sum(sum) / static_cast<float>(n));
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 centred = f_sub(f_load_n(x + i, count), mean);
    const F32x16 v = f_where_bits((1u << count) - 1u, centred, f_zero());
    squares = f_fma(v, v, squares);
  });
  const float variance = f_sum(squares) / static_cast<float>(n);
  const F32x16 inv = f_set1(1.0f / __builtin_sqrtf(variance + eps));
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 unit = f_mul(f_sub(f_load_n(x + i, count), mean), inv);
    const F32x16 scaled = f_mul(unit, f_load_n(gain + i, count));
    f_store_n(out + i, bias == nullptr ? scaled : f_add(scaled, f_load_n(bias + i, count)), count);
  });
}

// tanh_f32 of core/math.h in 16 lanes: the very same operations.
SPECDEC_INLINE F32x16 f_tanh(F32x16 x) {
  using namespace tanh_f32_constants;
  const F32x16 size = f_max(x, f_sub(f_zero(), x)), one = f_set1(1.0f);
  const F32x16 large = f_sub(one, f_div(f_set1(2.0f), f_add(f_exp(f_add(size, size)), one)));
  const F32x16 x2 = f_mul(x, x);
  F32x16 p = f_set1(kP0);
  p = f_add(f_mul(p, x2), f_set1(kP1));
  p = f_add(f_mul(p, x2), f_set1(kP2));
  p = f_add(f_mul(p, x2), f_set1(kP3));
  p = f_add(f_mul(p, x2), f_set1(kP4));
  const F32x16 small = f_add(f_mul(f_mul(p, x2), x), x);
  const F32x16 with_sign = f_where_ge(x, 0.0f, large, f_sub(f_zero(), large));
  return f_where_ge(size, kSmall, with_sign, small);
}

// gelu_f32 of core/math.h.
SPECDEC_INLINE F32x16 f_gelu(F32x16 x) {
  using namespace gelu_f32_constants;
  const F32x16 cubic = f_mul(f_mul(f_set1(kCubic), f_mul(x, x)), x);
  const F32x16 inner = f_mul(f_set1(kSqrt2OverPi), f_add(x, cubic));
  return f_mul(f_mul(f_set1(0.5f), x), f_add(f_set1(1.0f), f_tanh(inner)));
}

// gelu(gate) * up. gate, up, out [n]
void gelu_mul(const float* gate, const float* up, size_t n, float* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_n(out + i, f_mul(f_gelu(f_load_n(gate + i, count)), f_load_n(up + i, count)), count);
  });
}

void gelu(const float* x, size_t n, float* out) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_n(out + i, f_gelu(f_load_n(x + i, count)), count);
  });
}

// clamped_swiglu_f32 of core/math.h. gate, up, out [n]
void clamped_swiglu(const float* gate, const float* up, size_t n, float* out) {
  using namespace clamped_swiglu_constants;
  const F32x16 one = f_set1(1.0f), limit = f_set1(kLimit);
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 g = f_min(limit, f_load_n(gate + i, count));
    const F32x16 below = f_min(limit, f_load_n(up + i, count));
    const F32x16 u = f_max(f_set1(0.0f - kLimit), below);
    const F32x16 e = f_exp(f_sub(f_zero(), f_mul(f_set1(kSlope), g)));
    f_store_n(out + i, f_mul(f_div(g, f_add(one, e)), f_add(u, one)), count);
  });
}

// x = cap * tanh(x / cap)
void soft_cap(float* x, size_t n, float cap) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 share = f_tanh(f_div(f_load_n(x + i, count), f_set1(cap)));
    f_store_n(x + i, f_mul(f_set1(cap), share), count);
  });
}

void scale(float* x, size_t n, float factor) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    f_store_n(x + i, f_mul(f_load_n(x + i, count), f_set1(factor)), count);
  });
}

// x = fma(y, factor, x)
void add_scaled(float* x, const float* y, size_t n, float factor) {
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 old = f_load_n(x + i, count);
    f_store_n(x + i, f_fma(f_load_n(y + i, count), f_set1(factor), old), count);
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
