// The vector vocabulary of kernels.inl in plain C++: the definition of what each function means,
// used on machines without a better level and as the reference for the others.
//
// F32x16 holds the 16 virtual lanes that floating-point reductions run on at every level. LaneF,
// LaneI and LaneB are kLanes rows of a packed weight group: a float, an int32 and 4 bytes for each
// row.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Left to the compiler: forced inlining of loops over lanes would make an object of megabytes.
#define SPECDEC_INLINE inline
#define SPECDEC_LAMBDA_INLINE

namespace specdec {
namespace {

SPECDEC_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
SPECDEC_INLINE float bits_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}
SPECDEC_INLINE uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// As core/half.h, whose inline functions would be weak symbols of this object.
SPECDEC_INLINE float widen_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x0400u) return bits_float(sign | ((rest << 13) + 0x38000000u));
  return bits_float(sign | float_bits(static_cast<float>(rest) * 5.9604644775390625e-08f));
}
SPECDEC_INLINE uint16_t narrow_to_half(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
  if (mag >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (mag < 0x38800000u) {
    return static_cast<uint16_t>(sign | (float_bits(bits_float(mag) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13));
}

#define SPECDEC_EACH_LANE(i) for (size_t i = 0; i < 16; ++i)

constexpr int kFloatTileCols = 1;      // columns of a product with float weights
constexpr int kFloatAccumulators = 2;  // F32x16 that fit into the registers beside the operands
constexpr int kScoreVecs = 1;          // vectors of 16 keys that attention scores at once
constexpr int kValueVecs = 1;          // vectors of a value row that attention sums at once

// --- 16 virtual lanes
// ------------------------------------------------------------------------------

struct F32x16 {
  float v[16];
};
struct U32x16 {
  uint32_t v[16];
};

SPECDEC_INLINE F32x16 f_set1(float x) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = x;
  return out;
}
SPECDEC_INLINE F32x16 f_zero() { return f_set1(0.0f); }
// The first n <= 16 elements; the other lanes are +0.
SPECDEC_INLINE F32x16 f_load_n(const float* p, size_t n) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = i < n ? p[i] : 0.0f;
  return out;
}
SPECDEC_INLINE F32x16 f_load(const float* p) { return f_load_n(p, 16); }
SPECDEC_INLINE void f_store_n(float* p, F32x16 x, size_t n) {
  for (size_t i = 0; i < n; ++i) p[i] = x.v[i];
}
SPECDEC_INLINE void f_store(float* p, F32x16 x) { f_store_n(p, x, 16); }
SPECDEC_INLINE F32x16 f_add(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] + b.v[i];
  return a;
}
SPECDEC_INLINE F32x16 f_sub(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] - b.v[i];
  return a;
}
SPECDEC_INLINE F32x16 f_mul(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] * b.v[i];
  return a;
}
SPECDEC_INLINE F32x16 f_div(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] / b.v[i];
  return a;
}
// a * b + c, rounded once
SPECDEC_INLINE F32x16 f_fma(F32x16 a, F32x16 b, F32x16 c) {
  SPECDEC_EACH_LANE(i) a.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return a;
}
// The second operand where the first is not larger: a NaN in `a` is ignored.
SPECDEC_INLINE F32x16 f_max(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
SPECDEC_INLINE F32x16 f_min(F32x16 a, F32x16 b) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
// The fixed tree: lanes 8 apart, then 4, 2, 1.
SPECDEC_INLINE float f_sum(F32x16 x) {
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) x.v[i] = x.v[i] + x.v[i + half];
  }
  return x.v[0];
}
SPECDEC_INLINE float f_hmax(F32x16 x) {
  float max = x.v[0];
  SPECDEC_EACH_LANE(i) max = x.v[i] > max ? x.v[i] : max;
  return max;
}

SPECDEC_INLINE F32x16 f_load_f16_n(const uint8_t* p, size_t n) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = i < n ? widen_half(load_u16(p + 2 * i)) : 0.0f;
  return out;
}
SPECDEC_INLINE F32x16 f_load_f16(const uint8_t* p) { return f_load_f16_n(p, 16); }
SPECDEC_INLINE F32x16 f_load_bf16_n(const uint8_t* p, size_t n) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) {
    out.v[i] = i < n ? bits_float(static_cast<uint32_t>(load_u16(p + 2 * i)) << 16) : 0.0f;
  }
  return out;
}
SPECDEC_INLINE F32x16 f_load_bf16(const uint8_t* p) { return f_load_bf16_n(p, 16); }
// The half at p in all lanes.
SPECDEC_INLINE F32x16 f_set1_f16(const uint8_t* p) { return f_set1(widen_half(load_u16(p))); }
// 16 signed bytes.
SPECDEC_INLINE F32x16 f_load_i8(const uint8_t* p) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return out;
}
SPECDEC_INLINE void f_store_f16_n(uint16_t* p, F32x16 x, size_t n) {
  for (size_t i = 0; i < n; ++i) p[i] = narrow_to_half(x.v[i]);
}

// y with the low bits of `shifted` added to its exponent: the last step of exp.
SPECDEC_INLINE F32x16 f_add_exponent(F32x16 y, F32x16 shifted) {
  SPECDEC_EACH_LANE(i) y.v[i] = bits_float(float_bits(y.v[i]) + (float_bits(shifted.v[i]) << 23));
  return y;
}
// x >= bound ? yes : no; a NaN gives no
SPECDEC_INLINE F32x16 f_where_ge(F32x16 x, float bound, F32x16 yes, F32x16 no) {
  SPECDEC_EACH_LANE(i) no.v[i] = x.v[i] >= bound ? yes.v[i] : no.v[i];
  return no;
}
// bit i of bits ? yes : no
SPECDEC_INLINE F32x16 f_where_bits(uint32_t bits, F32x16 yes, F32x16 no) {
  SPECDEC_EACH_LANE(i) no.v[i] = (bits >> i) & 1u ? yes.v[i] : no.v[i];
  return no;
}

// Lane i: x[i & ~1], x[i | 1], x[i ^ 1]
SPECDEC_INLINE F32x16 f_spread_even(F32x16 x) {
  SPECDEC_EACH_LANE(i) x.v[i] = x.v[i & ~size_t{1}];
  return x;
}
SPECDEC_INLINE F32x16 f_spread_odd(F32x16 x) {
  for (size_t i = 0; i < 16; i += 2) x.v[i] = x.v[i + 1];
  return x;
}
SPECDEC_INLINE F32x16 f_swap_pairs(F32x16 x) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = x.v[i ^ 1];
  return out;
}
SPECDEC_INLINE F32x16 f_negate_even(F32x16 x) {
  for (size_t i = 0; i < 16; i += 2) x.v[i] = bits_float(float_bits(x.v[i]) ^ 0x80000000u);
  return x;
}
// The even (odd) elements of x, then of y.
SPECDEC_INLINE F32x16 f_take_even(F32x16 x, F32x16 y) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = i < 8 ? x.v[2 * i] : y.v[2 * i - 16];
  return out;
}
SPECDEC_INLINE F32x16 f_take_odd(F32x16 x, F32x16 y) {
  F32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = i < 8 ? x.v[2 * i + 1] : y.v[2 * i - 15];
  return out;
}

// Rows become columns.
SPECDEC_INLINE void f_transpose(F32x16 (&x)[16]) {
  for (size_t i = 0; i < 16; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const float upper = x[j].v[i];
      x[j].v[i] = x[i].v[j];
      x[i].v[j] = upper;
    }
  }
}

// The bits of the largest magnitude: ordered as integers, so a NaN or infinity is always found.
SPECDEC_INLINE uint32_t max_abs_bits(F32x16 a, F32x16 b) {
  uint32_t max = 0;
  SPECDEC_EACH_LANE(i) {
    const uint32_t x = float_bits(a.v[i]) & 0x7fffffffu, y = float_bits(b.v[i]) & 0x7fffffffu;
    max = x > max ? x : max;
    max = y > max ? y : max;
  }
  return max;
}
// Rounds |x| <= 127 to nearest, ties to even; stores 16 bytes, returns their sum.
SPECDEC_INLINE int32_t round_to_i8(F32x16 x, int8_t* out) {
  int32_t sum = 0;
  SPECDEC_EACH_LANE(i) {
    out[i] = static_cast<int8_t>((x.v[i] + 12582912.0f) - 12582912.0f);
    sum += out[i];
  }
  return sum;
}

// Sum of floor(weight * 2^44): weight_to_mass of sampling_rule.h.
struct MassSum {
  uint64_t sum = 0;
  SPECDEC_INLINE void add(F32x16 weight) {
    SPECDEC_EACH_LANE(i) {
      sum += static_cast<uint64_t>(static_cast<double>(weight.v[i]) * 17592186044416.0);
    }
  }
  SPECDEC_INLINE uint64_t total() const { return sum; }
};

SPECDEC_INLINE U32x16 u_set1(uint32_t x) {
  U32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = x;
  return out;
}
SPECDEC_INLINE U32x16 u_iota(uint32_t first) {
  U32x16 out;
  SPECDEC_EACH_LANE(i) out.v[i] = first + static_cast<uint32_t>(i);
  return out;
}
SPECDEC_INLINE U32x16 u_xor3(U32x16 a, U32x16 b, U32x16 c) {
  SPECDEC_EACH_LANE(i) a.v[i] = a.v[i] ^ b.v[i] ^ c.v[i];
  return a;
}
SPECDEC_INLINE void u_mul_wide(U32x16 x, uint32_t factor, U32x16* high, U32x16* low) {
  SPECDEC_EACH_LANE(i) {
    const uint64_t product = static_cast<uint64_t>(x.v[i]) * factor;
    high->v[i] = static_cast<uint32_t>(product >> 32);
    low->v[i] = static_cast<uint32_t>(product);
  }
}
// Bit i: float(bits[i] >> 8) <= limit[i]
SPECDEC_INLINE uint32_t lanes_below(U32x16 bits, F32x16 limit) {
  uint32_t lanes = 0;
  SPECDEC_EACH_LANE(i) {
    if (static_cast<float>(static_cast<int32_t>(bits.v[i] >> 8)) <= limit.v[i]) lanes |= 1u << i;
  }
  return lanes;
}
// Bit i: x[i] >= bound
SPECDEC_INLINE uint32_t lanes_ge(F32x16 x, float bound) {
  uint32_t lanes = 0;
  SPECDEC_EACH_LANE(i) {
    if (x.v[i] >= bound) lanes |= 1u << i;
  }
  return lanes;
}

// --- Matmul lanes: kLanes rows of a group at a time
// -------------------------------------------------

constexpr int kLanes = 16;
constexpr int kVecs = 1;
constexpr int kTileCols = 1;
using LaneF = F32x16;
struct LaneI {
  int32_t v[16];
};
struct LaneB {
  uint8_t v[64];
};
struct LaneX {  // a quad of activations, for every lane
  int32_t v[4];
};

SPECDEC_INLINE LaneF lane_zero() { return f_zero(); }
SPECDEC_INLINE LaneF lane_set1(float x) { return f_set1(x); }
SPECDEC_INLINE LaneF lane_mul(LaneF a, LaneF b) { return f_mul(a, b); }
SPECDEC_INLINE LaneF lane_fma(LaneF a, LaneF b, LaneF c) { return f_fma(a, b, c); }
SPECDEC_INLINE LaneF lane_to_float(LaneI x) {
  LaneF out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(x.v[i]);
  return out;
}
// The first `valid` lanes (<= 0: none)
SPECDEC_INLINE void lane_store(float* p, LaneF x, int valid) {
  for (int i = 0; i < 16 && i < valid; ++i) p[i] = x.v[i];
}
SPECDEC_INLINE LaneF lane_load_f16(const uint8_t* p) { return f_load_f16(p); }
SPECDEC_INLINE LaneF lane_load_bf16(const uint8_t* p) { return f_load_bf16(p); }
SPECDEC_INLINE LaneF lane_load_u8(const uint8_t* p) {
  LaneF out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(p[i]);
  return out;
}
SPECDEC_INLINE LaneF lane_load_i8(const uint8_t* p) {
  LaneF out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return out;
}
SPECDEC_INLINE LaneF lane_load_u4_low(const uint8_t* p) {
  LaneF out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(p[i] & 15);
  return out;
}
SPECDEC_INLINE LaneF lane_load_u4_high(const uint8_t* p) {
  LaneF out;
  SPECDEC_EACH_LANE(i) out.v[i] = static_cast<float>(p[i] >> 4);
  return out;
}

SPECDEC_INLINE LaneX bytes_broadcast(const int8_t* x) { return {{x[0], x[1], x[2], x[3]}}; }
SPECDEC_INLINE LaneB bytes_load(const uint8_t* p) {
  LaneB out;
  __builtin_memcpy(out.v, p, sizeof(out.v));
  return out;
}
// (x >> kShift) & kMask in each byte
template <int kShift, int kMask>
SPECDEC_INLINE LaneB bytes_field(LaneB x) {
  for (size_t i = 0; i < 64; ++i) x.v[i] = static_cast<uint8_t>((x.v[i] >> kShift) & kMask);
  return x;
}
// low | ((x >> kShift) & kMask) << kTo in each byte
template <int kShift, int kMask, int kTo>
SPECDEC_INLINE LaneB bytes_merge(LaneB low, LaneB x) {
  for (size_t i = 0; i < 64; ++i) {
    low.v[i] = static_cast<uint8_t>(low.v[i] | (((x.v[i] >> kShift) & kMask) << kTo));
  }
  return low;
}
// table[x] in each byte; all bytes of x are below 16. table: 16 bytes, aligned to 16
SPECDEC_INLINE LaneB bytes_lookup16(LaneB x, const uint8_t* table) {
  for (size_t i = 0; i < 64; ++i) x.v[i] = table[x.v[i]];
  return x;
}

// The exact integer dot product of kBits-bit weights with int8 activations, 4 values of K (a quad)
// at a time. kFirst and kLast mark the ends of a run of quads between begin() and total().
template <int kBits>
struct DotSum {
  LaneI sum;
  SPECDEC_INLINE void begin(int32_t start) { SPECDEC_EACH_LANE(i) sum.v[i] = start; }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(const LaneB& w, const LaneX& x) {
    SPECDEC_EACH_LANE(i) {
      sum.v[i] += w.v[4 * i] * x.v[0] + w.v[4 * i + 1] * x.v[1] + w.v[4 * i + 2] * x.v[2] +
                  w.v[4 * i + 3] * x.v[3];
    }
  }
  SPECDEC_INLINE LaneI total() const { return sum; }
};

}  // namespace
}  // namespace specdec
