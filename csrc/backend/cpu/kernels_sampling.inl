// Sampling: part of kernels.inl. The arithmetic is that of sampling_rule.h and core/rng.h,
// operation for operation.

constexpr float kLeastWeight = 5.6843418860808015e-14f;  // 2^-44: the least weight that has a mass

// The 16 mask bits of ids [i, i + n); i is a multiple of 16.
SPECDEC_INLINE uint32_t allowed_lanes(const uint32_t* mask, size_t i, size_t n) {
  const uint32_t present = (1u << n) - 1u;
  return mask == nullptr ? present : (mask[i / 32] >> (i % 32)) & present;
}

float max_logit(const float* logits, const uint32_t* mask, size_t n) {
  const F32x16 lowest = f_set1(-__builtin_inff());
  F32x16 max = lowest;
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 x = f_load_n(logits + i, count);
    max = f_max(f_where_bits(allowed_lanes(mask, i, count), x, lowest), max);
  });
  return f_hmax(max);
}

// z = logit == max ? 0 : (logit - max) * inv_temperature (scaled_logit); max is greater than
// -infinity.
uint64_t logit_weights(const float* logits, const uint32_t* mask, size_t n, float max,
                       float inv_temperature, float* z_out, float* weight_out) {
  const F32x16 lowest = f_set1(-__builtin_inff()), zero = f_zero();
  const F32x16 max_lanes = f_set1(max), inv = f_set1(inv_temperature);
  MassSum mass;
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 x = f_load_n(logits + i, count);
    // No logit is above max, so >= is ==.
    F32x16 z = f_where_ge(x, max, zero, f_mul(f_sub(x, max_lanes), inv));
    z = f_where_bits(allowed_lanes(mask, i, count), z, lowest);
    F32x16 weight = f_exp(z);
    z = f_where_ge(weight, kLeastWeight, z, lowest);
    weight = f_where_ge(weight, kLeastWeight, weight, zero);
    mass.add(weight);
    if (z_out != nullptr) f_store_n(z_out + i, z, count);
    f_store_n(weight_out + i, weight, count);
  });
  return mass.total();
}

// surprisal_mass: where there is no weight, z may be -infinity.
uint64_t surprisal_sum(const float* z, const float* weight, size_t n) {
  MassSum sum;
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 w = f_load_n(weight + i, count);
    const F32x16 share = f_mul(w, f_sub(f_zero(), f_load_n(z + i, count)));
    sum.add(f_where_ge(w, kLeastWeight, share, f_zero()));
  });
  return sum.total();
}

// typical_rank
void typical_ranks(const float* z, size_t n, float mean, float* rank) {
  const F32x16 center = f_set1(mean);
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 x = f_load_n(z + i, count);
    f_store_n(rank + i, f_min(f_sub(x, center), f_sub(center, x)), count);
  });
}

// The high word of random_u64 for 16 lanes (token ids), without the low one.
SPECDEC_INLINE U32x16 philox_high_word(U32x16 lane, const uint32_t key[5]) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  U32x16 x0 = u_set1(key[2]), x1 = u_set1(key[3]), x2 = u_set1(key[4]), x3 = lane;
  uint32_t key0 = key[0], key1 = key[1];
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    U32x16 high0, low0, high1, low1;
    u_mul_wide(x0, kMul0, &high0, &low0);
    u_mul_wide(x2, kMul1, &high1, &low1);
    x0 = u_xor3(high1, x1, u_set1(key0));
    x1 = low1;
    x2 = u_xor3(high0, x3, u_set1(key1));
    x3 = low0;
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x1;
}

// The test uses the top 24 bits of the uniform, which never exceed it, and a bound with slack for
// the roundings of float, so it only ever lets more through.
size_t race_candidates(const float* weight, size_t n, const uint32_t key[5], double bound,
                       int32_t* ids, size_t capacity) {
  const double wide = bound * 16777216.0 * 1.00001;
  const F32x16 scale = f_set1(wide < 1e38 ? static_cast<float>(wide) : 1e38f);
  size_t found = 0;
  for_each_16(n, [&](size_t i, size_t count) SPECDEC_LAMBDA_INLINE {
    const F32x16 w = f_load_n(weight + i, count);
    uint32_t lanes = lanes_ge(w, kLeastWeight);
    if (lanes == 0) return;
    const U32x16 bits = philox_high_word(u_iota(static_cast<uint32_t>(i)), key);
    lanes &= lanes_below(bits, f_mul(w, scale));
    for (; lanes != 0; lanes &= lanes - 1) {
      if (found < capacity) ids[found] = static_cast<int32_t>(i) + __builtin_ctz(lanes);
      ++found;
    }
  });
  return found;
}
