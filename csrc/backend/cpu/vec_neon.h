// The vector vocabulary of kernels.inl for NEON (AArch64). See vec_scalar.h for what each function
// means: it is the readable definition, and every level gives its bits. One header for two levels:
// kernels_neon_dotprod.cpp defines SPECDEC_NEON_DOTPROD, and the integer dot products use SDOT.
#pragma once

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define SPECDEC_INLINE inline __attribute__((always_inline))
#define SPECDEC_LAMBDA_INLINE __attribute__((always_inline))

namespace specdec {
namespace {

constexpr int kFloatTileCols = 4;      // columns of a product with float weights
constexpr int kFloatAccumulators = 4;  // F32x16 that fit into the registers beside the operands
constexpr int kScoreVecs = 1;          // vectors of 16 keys that attention scores at once
constexpr int kValueVecs = 1;          // vectors of a value row that attention sums at once

// --- 16 virtual lanes
// ------------------------------------------------------------------------------

// Lanes 4i to 4i + 3 are in v[i].
struct F32x16 {
  float32x4_t v[4];
};
struct U32x16 {
  uint32x4_t v[4];
};

#define SPECDEC_EACH_PART(i) _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i)

SPECDEC_INLINE F32x16 f_set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
SPECDEC_INLINE F32x16 f_zero() { return f_set1(0.0f); }
SPECDEC_INLINE F32x16 f_load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
SPECDEC_INLINE void f_store(float* p, F32x16 x) {
  SPECDEC_EACH_PART(i) vst1q_f32(p + 4 * i, x.v[i]);
}
SPECDEC_INLINE F32x16 f_load_n(const float* p, size_t n) {
  if (n == 16) return f_load(p);
  float part[16] = {};
  for (size_t i = 0; i < n; ++i) part[i] = p[i];
  return f_load(part);
}
SPECDEC_INLINE void f_store_n(float* p, F32x16 x, size_t n) {
  if (n == 16) return f_store(p, x);
  float part[16];
  f_store(part, x);
  for (size_t i = 0; i < n; ++i) p[i] = part[i];
}
SPECDEC_INLINE F32x16 f_add(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) x.v[i] = vaddq_f32(x.v[i], y.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_sub(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) x.v[i] = vsubq_f32(x.v[i], y.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_mul(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) x.v[i] = vmulq_f32(x.v[i], y.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_div(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) x.v[i] = vdivq_f32(x.v[i], y.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_fma(F32x16 x, F32x16 y, F32x16 z) {
  SPECDEC_EACH_PART(i) z.v[i] = vfmaq_f32(z.v[i], x.v[i], y.v[i]);
  return z;
}
// Not FMAX and FMIN: they let a NaN through.
SPECDEC_INLINE F32x16 f_max(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) y.v[i] = vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]);
  return y;
}
SPECDEC_INLINE F32x16 f_min(F32x16 x, F32x16 y) {
  SPECDEC_EACH_PART(i) y.v[i] = vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]);
  return y;
}
SPECDEC_INLINE float f_sum(F32x16 x) {
  const float32x4_t low = vaddq_f32(x.v[0], x.v[2]), high = vaddq_f32(x.v[1], x.v[3]);
  const float32x4_t four = vaddq_f32(low, high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
SPECDEC_INLINE float f_hmax(F32x16 x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}

SPECDEC_INLINE float32x4_t widen_f16(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
SPECDEC_INLINE float32x4_t widen_bf16(const uint8_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}
SPECDEC_INLINE F32x16 f_load_f16(const uint8_t* p) {
  return {{widen_f16(p), widen_f16(p + 8), widen_f16(p + 16), widen_f16(p + 24)}};
}
SPECDEC_INLINE F32x16 f_load_bf16(const uint8_t* p) {
  return {{widen_bf16(p), widen_bf16(p + 8), widen_bf16(p + 16), widen_bf16(p + 24)}};
}
SPECDEC_INLINE F32x16 f_load_f16_n(const uint8_t* p, size_t n) {
  uint8_t part[32] = {};
  for (size_t i = 0; i < 2 * n; ++i) part[i] = p[i];
  return f_load_f16(part);
}
SPECDEC_INLINE F32x16 f_load_bf16_n(const uint8_t* p, size_t n) {
  uint8_t part[32] = {};
  for (size_t i = 0; i < 2 * n; ++i) part[i] = p[i];
  return f_load_bf16(part);
}
SPECDEC_INLINE F32x16 f_set1_f16(const uint8_t* p) {
  const float32x4_t all =
      vcvt_f32_f16(vreinterpret_f16_u16(vld1_dup_u16(reinterpret_cast<const uint16_t*>(p))));
  return {{all, all, all, all}};
}
SPECDEC_INLINE F32x16 f_load_i8(const uint8_t* p) {
  const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
SPECDEC_INLINE void f_store_f16_n(uint16_t* p, F32x16 x, size_t n) {
  uint16_t half[16];
  SPECDEC_EACH_PART(i) vst1_u16(half + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
  for (size_t i = 0; i < n; ++i) p[i] = half[i];
}

SPECDEC_INLINE F32x16 f_add_exponent(F32x16 y, F32x16 shifted) {
  SPECDEC_EACH_PART(i) {
    const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(shifted.v[i]), 23);
    y.v[i] = vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(y.v[i]), exponent));
  }
  return y;
}
SPECDEC_INLINE F32x16 f_where_ge(F32x16 x, float bound, F32x16 yes, F32x16 no) {
  const float32x4_t limit = vdupq_n_f32(bound);
  SPECDEC_EACH_PART(i) no.v[i] = vbslq_f32(vcgeq_f32(x.v[i], limit), yes.v[i], no.v[i]);
  return no;
}
// The bits of lanes 4 * part to 4 * part + 3, each in its lane.
SPECDEC_INLINE uint32x4_t lane_bits(int part) {
  const int32x4_t shifts = {0, 1, 2, 3};
  return vshlq_u32(vdupq_n_u32(1u << (4 * part)), shifts);
}
SPECDEC_INLINE F32x16 f_where_bits(uint32_t bits, F32x16 yes, F32x16 no) {
  const uint32x4_t all = vdupq_n_u32(bits);
  SPECDEC_EACH_PART(i) no.v[i] = vbslq_f32(vtstq_u32(all, lane_bits(i)), yes.v[i], no.v[i]);
  return no;
}

SPECDEC_INLINE F32x16 f_spread_even(F32x16 x) {
  SPECDEC_EACH_PART(i) x.v[i] = vtrn1q_f32(x.v[i], x.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_spread_odd(F32x16 x) {
  SPECDEC_EACH_PART(i) x.v[i] = vtrn2q_f32(x.v[i], x.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_swap_pairs(F32x16 x) {
  SPECDEC_EACH_PART(i) x.v[i] = vrev64q_f32(x.v[i]);
  return x;
}
SPECDEC_INLINE F32x16 f_negate_even(F32x16 x) {
  const uint32x4_t sign = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
  SPECDEC_EACH_PART(i) {
    x.v[i] = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x.v[i]), sign));
  }
  return x;
}
SPECDEC_INLINE F32x16 f_take_even(F32x16 x, F32x16 y) {
  return {{vuzp1q_f32(x.v[0], x.v[1]), vuzp1q_f32(x.v[2], x.v[3]), vuzp1q_f32(y.v[0], y.v[1]),
           vuzp1q_f32(y.v[2], y.v[3])}};
}
SPECDEC_INLINE F32x16 f_take_odd(F32x16 x, F32x16 y) {
  return {{vuzp2q_f32(x.v[0], x.v[1]), vuzp2q_f32(x.v[2], x.v[3]), vuzp2q_f32(y.v[0], y.v[1]),
           vuzp2q_f32(y.v[2], y.v[3])}};
}

// Part `to` of rows 4 * from to 4 * from + 3 becomes part `from` of rows 4 * to to 4 * to + 3.
SPECDEC_INLINE void transpose_part(const F32x16* x, int from, int to, F32x16* out) {
  const float32x4_t a = x[4 * from].v[to], b = x[4 * from + 1].v[to];
  const float32x4_t c = x[4 * from + 2].v[to], d = x[4 * from + 3].v[to];
  const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));  // a0 b0 a2 b2
  const float64x2_t ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
  const float64x2_t cd_even = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
  const float64x2_t cd_odd = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
  out[4 * to].v[from] = vreinterpretq_f32_f64(vtrn1q_f64(ab_even, cd_even));
  out[4 * to + 1].v[from] = vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, cd_odd));
  out[4 * to + 2].v[from] = vreinterpretq_f32_f64(vtrn2q_f64(ab_even, cd_even));
  out[4 * to + 3].v[from] = vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, cd_odd));
}
SPECDEC_INLINE void f_transpose(F32x16 (&x)[16]) {
  F32x16 y[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) y[i] = x[i];
  SPECDEC_EACH_PART(from) {
    SPECDEC_EACH_PART(to) { transpose_part(y, from, to, x); }
  }
}

SPECDEC_INLINE uint32_t max_abs_bits(F32x16 x, F32x16 y) {
  uint32x4_t max = vdupq_n_u32(0);
  SPECDEC_EACH_PART(i) {
    max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(x.v[i])));
    max = vmaxq_u32(max, vreinterpretq_u32_f32(vabsq_f32(y.v[i])));
  }
  return vmaxvq_u32(max);
}
SPECDEC_INLINE int32_t round_to_i8(F32x16 x, int8_t* out) {
  const int32x4_t a = vcvtnq_s32_f32(x.v[0]), b = vcvtnq_s32_f32(x.v[1]);
  const int32x4_t c = vcvtnq_s32_f32(x.v[2]), d = vcvtnq_s32_f32(x.v[3]);
  const int16x8_t low = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
  const int16x8_t high = vcombine_s16(vmovn_s32(c), vmovn_s32(d));
  vst1q_s8(out, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  return vaddvq_s32(vaddq_s32(vaddq_s32(a, b), vaddq_s32(c, d)));
}

struct MassSum {
  uint64x2_t sum = vdupq_n_u64(0);
  SPECDEC_INLINE void add(F32x16 weight) {
    SPECDEC_EACH_PART(i) {
      const float64x2_t low = vcvt_f64_f32(vget_low_f32(weight.v[i]));
      const float64x2_t high = vcvt_high_f64_f32(weight.v[i]);
      sum = vaddq_u64(sum, vcvtq_u64_f64(vmulq_n_f64(low, 17592186044416.0)));
      sum = vaddq_u64(sum, vcvtq_u64_f64(vmulq_n_f64(high, 17592186044416.0)));
    }
  }
  SPECDEC_INLINE uint64_t total() const { return vaddvq_u64(sum); }
};

SPECDEC_INLINE U32x16 u_set1(uint32_t x) {
  const uint32x4_t v = vdupq_n_u32(x);
  return {{v, v, v, v}};
}
SPECDEC_INLINE U32x16 u_iota(uint32_t first) {
  const uint32x4_t steps = {0, 1, 2, 3};
  U32x16 out;
  SPECDEC_EACH_PART(i) {
    out.v[i] = vaddq_u32(vdupq_n_u32(first + 4 * static_cast<uint32_t>(i)), steps);
  }
  return out;
}
SPECDEC_INLINE U32x16 u_xor3(U32x16 x, U32x16 y, U32x16 z) {
  SPECDEC_EACH_PART(i) x.v[i] = veorq_u32(veorq_u32(x.v[i], y.v[i]), z.v[i]);
  return x;
}
SPECDEC_INLINE void u_mul_wide(U32x16 x, uint32_t factor, U32x16* high, U32x16* low) {
  const uint32x4_t f = vdupq_n_u32(factor);
  SPECDEC_EACH_PART(i) {
    const uint32x4_t a = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x.v[i]), vget_low_u32(f)));
    const uint32x4_t b = vreinterpretq_u32_u64(vmull_high_u32(x.v[i], f));
    low->v[i] = vuzp1q_u32(a, b);
    high->v[i] = vuzp2q_u32(a, b);
  }
}
// Bit i: lane i of `found` is all ones.
SPECDEC_INLINE uint32_t lanes_of(const uint32x4_t (&found)[4]) {
  uint32x4_t bits = vdupq_n_u32(0);
  SPECDEC_EACH_PART(i) bits = vorrq_u32(bits, vandq_u32(found[i], lane_bits(i)));
  return vaddvq_u32(bits);
}
SPECDEC_INLINE uint32_t lanes_below(U32x16 bits, F32x16 limit) {
  uint32x4_t found[4];
  SPECDEC_EACH_PART(i) {
    found[i] = vcleq_f32(vcvtq_f32_u32(vshrq_n_u32(bits.v[i], 8)), limit.v[i]);
  }
  return lanes_of(found);
}
SPECDEC_INLINE uint32_t lanes_ge(F32x16 x, float bound) {
  const float32x4_t limit = vdupq_n_f32(bound);
  uint32x4_t found[4];
  SPECDEC_EACH_PART(i) found[i] = vcgeq_f32(x.v[i], limit);
  return lanes_of(found);
}

SPECDEC_INLINE int32_t load_i32(const void* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// --- Matmul lanes: kLanes rows of a group at a time
// -------------------------------------------------

constexpr int kLanes = 4;
constexpr int kVecs = 2;
#ifdef SPECDEC_NEON_DOTPROD
// 16 dot products and the weights in registers; the float sums wait in memory between the blocks.
constexpr int kTileCols = 8;
#else
constexpr int kTileCols = 4;  // a dot product takes two registers
#endif
using LaneF = float32x4_t;
using LaneI = int32x4_t;
using LaneB = uint8x16_t;
#ifdef SPECDEC_NEON_DOTPROD
using LaneX = const int8_t*;  // SDOT broadcasts by itself
#else
using LaneX = int8x16_t;
#endif

SPECDEC_INLINE LaneF lane_zero() { return vdupq_n_f32(0.0f); }
SPECDEC_INLINE LaneF lane_set1(float x) { return vdupq_n_f32(x); }
SPECDEC_INLINE LaneF lane_mul(LaneF x, LaneF y) { return vmulq_f32(x, y); }
SPECDEC_INLINE LaneF lane_fma(LaneF x, LaneF y, LaneF z) { return vfmaq_f32(z, x, y); }
SPECDEC_INLINE LaneF lane_to_float(LaneI x) { return vcvtq_f32_s32(x); }
SPECDEC_INLINE void lane_store(float* p, LaneF x, int valid) {
  if (valid >= 4) return vst1q_f32(p, x);
  if (valid > 0) p[0] = vgetq_lane_f32(x, 0);
  if (valid > 1) p[1] = vgetq_lane_f32(x, 1);
  if (valid > 2) p[2] = vgetq_lane_f32(x, 2);
}
SPECDEC_INLINE LaneF lane_load_f16(const uint8_t* p) { return widen_f16(p); }
SPECDEC_INLINE LaneF lane_load_bf16(const uint8_t* p) { return widen_bf16(p); }
SPECDEC_INLINE uint32x4_t widen_u8(const uint8_t* p) {
  const uint8x8_t bytes = vreinterpret_u8_s32(vdup_n_s32(load_i32(p)));
  return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}
SPECDEC_INLINE LaneF lane_load_u8(const uint8_t* p) { return vcvtq_f32_u32(widen_u8(p)); }
SPECDEC_INLINE LaneF lane_load_i8(const uint8_t* p) {
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(load_i32(p)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
SPECDEC_INLINE LaneF lane_load_u4_low(const uint8_t* p) {
  return vcvtq_f32_u32(vandq_u32(widen_u8(p), vdupq_n_u32(15)));
}
SPECDEC_INLINE LaneF lane_load_u4_high(const uint8_t* p) {
  return vcvtq_f32_u32(vshrq_n_u32(widen_u8(p), 4));
}

#ifdef SPECDEC_NEON_DOTPROD
SPECDEC_INLINE LaneX bytes_broadcast(const int8_t* x) { return x; }
#else
SPECDEC_INLINE LaneX bytes_broadcast(const int8_t* x) {
  return vreinterpretq_s8_s32(vdupq_n_s32(load_i32(x)));
}
#endif
SPECDEC_INLINE LaneB bytes_load(const uint8_t* p) { return vld1q_u8(p); }
template <int kShift, int kMask>
SPECDEC_INLINE LaneB bytes_field(LaneB x) {
  if constexpr (kShift > 0) x = vshrq_n_u8(x, kShift);
  if constexpr ((0xff >> kShift & ~kMask) != 0) x = vandq_u8(x, vdupq_n_u8(kMask));
  return x;
}
template <int kShift, int kMask, int kTo>
SPECDEC_INLINE LaneB bytes_merge(LaneB low, LaneB x) {
  if constexpr (kTo > kShift) x = vshlq_n_u8(x, kTo - kShift);
  if constexpr (kTo < kShift) x = vshrq_n_u8(x, kShift - kTo);
  return vorrq_u8(low, vandq_u8(x, vdupq_n_u8(kMask << kTo)));
}

SPECDEC_INLINE LaneB bytes_lookup16(LaneB x, const uint8_t* table) {
  return vqtbl1q_u8(vld1q_u8(table), x);
}

// Weights of up to 7 bits count as signed bytes. Those of 8 bits become w - 128, whose sum needs no
// zero point.
template <int kBits>
SPECDEC_INLINE int8x16_t signed_weights(LaneB w) {
  return vreinterpretq_s8_u8(kBits == 8 ? veorq_u8(w, vdupq_n_u8(0x80)) : w);
}

#ifdef SPECDEC_NEON_DOTPROD

template <int kBits>
struct DotSum {
  int32x4_t sum;
  SPECDEC_INLINE void begin(int32_t start) { sum = vdupq_n_s32(kBits == 8 ? 0 : start); }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(LaneB w, LaneX x) {
    const int8x16_t four_quads = vld1q_s8(x - 4 * (kQuad % 4));
    sum = vdotq_laneq_s32(sum, signed_weights<kBits>(w), four_quads, kQuad % 4);
  }
  SPECDEC_INLINE LaneI total() const { return sum; }
};

#else

// SMULL and SMLAL sum products of bytes in 16 bits: `low` those of rows 0 and 1, `high` of rows 2
// and 3, 4 for each row. A product is at most 127 * (2^bits - 1), or 127 * 128 for 8 bits; kSums of
// them stay below 2^15, then they are widened.
template <int kBits>
struct DotSum {
  static constexpr int kSums = kBits <= 5 ? 8 : kBits == 6 ? 4 : 2;
  int16x8_t low, high;
  int32x4_t wide_low, wide_high;  // two lanes a row
  int32_t start;
  SPECDEC_INLINE void begin(int32_t value) {
    start = kBits == 8 ? 0 : value;
    wide_low = wide_high = vdupq_n_s32(0);
  }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(LaneB weights, LaneX x) {
    const int8x16_t w = signed_weights<kBits>(weights);
    if constexpr (kFirst || kQuad % kSums == 0) {
      low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
      high = vmull_high_s8(w, x);
    } else {
      low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(x));
      high = vmlal_high_s8(high, w, x);
    }
    if constexpr (kLast || kQuad % kSums == kSums - 1) {
      wide_low = vpadalq_s16(wide_low, low);
      wide_high = vpadalq_s16(wide_high, high);
    }
  }
  SPECDEC_INLINE LaneI total() const {
    return vaddq_s32(vpaddq_s32(wide_low, wide_high), vdupq_n_s32(start));
  }
};

#endif

}  // namespace
}  // namespace specdec
