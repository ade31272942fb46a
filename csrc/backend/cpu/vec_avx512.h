// The vector vocabulary of kernels.inl for AVX-512 (F, BW, DQ, VL, VNNI). See vec_scalar.h for what
// each function means: it is the readable definition, and every level gives its bits.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define SPECDEC_INLINE inline __attribute__((always_inline))
#define SPECDEC_LAMBDA_INLINE __attribute__((always_inline))

namespace specdec {
namespace {

constexpr int kFloatTileCols = 4;       // columns of a product with float weights
constexpr int kFloatAccumulators = 16;  // F32x16 that fit into the registers beside the operands
constexpr int kScoreVecs = 4;           // vectors of 16 keys that attention scores at once
constexpr int kValueVecs = 4;           // vectors of a value row that attention sums at once

// --- 16 virtual lanes
// ------------------------------------------------------------------------------

using F32x16 = __m512;
using U32x16 = __m512i;

SPECDEC_INLINE F32x16 f_zero() { return _mm512_setzero_ps(); }
SPECDEC_INLINE F32x16 f_set1(float x) { return _mm512_set1_ps(x); }
SPECDEC_INLINE F32x16 f_load(const float* p) { return _mm512_loadu_ps(p); }
SPECDEC_INLINE void f_store(float* p, F32x16 x) { _mm512_storeu_ps(p, x); }
SPECDEC_INLINE __mmask16 lane_mask(size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
SPECDEC_INLINE F32x16 f_load_n(const float* p, size_t n) {
  return _mm512_maskz_loadu_ps(lane_mask(n), p);
}
SPECDEC_INLINE void f_store_n(float* p, F32x16 x, size_t n) {
  _mm512_mask_storeu_ps(p, lane_mask(n), x);
}
SPECDEC_INLINE F32x16 f_add(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
SPECDEC_INLINE F32x16 f_sub(F32x16 a, F32x16 b) { return _mm512_sub_ps(a, b); }
SPECDEC_INLINE F32x16 f_mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
SPECDEC_INLINE F32x16 f_div(F32x16 a, F32x16 b) { return _mm512_div_ps(a, b); }
SPECDEC_INLINE F32x16 f_fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); }
SPECDEC_INLINE F32x16 f_max(F32x16 a, F32x16 b) { return _mm512_max_ps(a, b); }
SPECDEC_INLINE F32x16 f_min(F32x16 a, F32x16 b) { return _mm512_min_ps(a, b); }

SPECDEC_INLINE __m128 fold_to_4(F32x16 x) {
  const __m256 high = _mm512_extractf32x8_ps(x, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), high);
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}
SPECDEC_INLINE float f_sum(F32x16 x) {
  const __m128 four = fold_to_4(x);
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
SPECDEC_INLINE float f_hmax(F32x16 x) { return _mm512_reduce_max_ps(x); }

SPECDEC_INLINE F32x16 f_load_f16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SPECDEC_INLINE F32x16 f_load_f16_n(const uint8_t* p, size_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lane_mask(n), p));
}
SPECDEC_INLINE F32x16 widen_bf16(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
SPECDEC_INLINE F32x16 f_load_bf16(const uint8_t* p) {
  return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SPECDEC_INLINE F32x16 f_load_bf16_n(const uint8_t* p, size_t n) {
  return widen_bf16(_mm256_maskz_loadu_epi16(lane_mask(n), p));
}
SPECDEC_INLINE F32x16 f_set1_f16(const uint8_t* p) {
  int16_t half;
  __builtin_memcpy(&half, p, sizeof(half));
  return _mm512_cvtph_ps(_mm256_set1_epi16(half));
}
SPECDEC_INLINE F32x16 f_load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SPECDEC_INLINE void f_store_f16_n(uint16_t* p, F32x16 x, size_t n) {
  _mm256_mask_storeu_epi16(p, lane_mask(n), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

SPECDEC_INLINE F32x16 f_add_exponent(F32x16 y, F32x16 shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), exponent));
}
SPECDEC_INLINE F32x16 f_where_ge(F32x16 x, float bound, F32x16 yes, F32x16 no) {
  const __mmask16 ge = _mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_GE_OQ);
  return _mm512_mask_blend_ps(ge, no, yes);
}
SPECDEC_INLINE F32x16 f_where_bits(uint32_t bits, F32x16 yes, F32x16 no) {
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), no, yes);
}

SPECDEC_INLINE F32x16 f_spread_even(F32x16 x) { return _mm512_moveldup_ps(x); }
SPECDEC_INLINE F32x16 f_spread_odd(F32x16 x) { return _mm512_movehdup_ps(x); }
SPECDEC_INLINE F32x16 f_swap_pairs(F32x16 x) { return _mm512_permute_ps(x, 0xB1); }
SPECDEC_INLINE F32x16 f_negate_even(F32x16 x) {
  return _mm512_xor_ps(x, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000ll)));
}
SPECDEC_INLINE F32x16 f_take_even(F32x16 x, F32x16 y) {
  const __m512i from = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(x, from, y);
}
SPECDEC_INLINE F32x16 f_take_odd(F32x16 x, F32x16 y) {
  const __m512i from = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(x, from, y);
}

// The four 4 x 4 blocks of 128-bit lanes first, then the lanes themselves.
SPECDEC_INLINE void f_transpose(F32x16 (&x)[16]) {
  __m512 y[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]);
    const __m512 d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
    y[i] = _mm512_shuffle_ps(a, c, 0x44);
    y[i + 1] = _mm512_shuffle_ps(a, c, 0xEE);
    y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    y[i + 3] = _mm512_shuffle_ps(b, d, 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xDD);
    const __m512 c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xDD);
    x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
    x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
    x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xDD);
    x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xDD);
  }
}

SPECDEC_INLINE uint32_t max_abs_bits(F32x16 a, F32x16 b) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i x = _mm512_and_si512(_mm512_castps_si512(a), magnitude);
  const __m512i y = _mm512_and_si512(_mm512_castps_si512(b), magnitude);
  return static_cast<uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(x, y)));
}
SPECDEC_INLINE int32_t round_to_i8(F32x16 x, int8_t* out) {
  const __m512i q = _mm512_cvtps_epi32(x);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(q));
  return _mm512_reduce_add_epi32(q);
}

struct MassSum {
  __m512i sum = _mm512_setzero_si512();
  SPECDEC_INLINE void add(F32x16 weight) {
    const __m512d unit = _mm512_set1_pd(17592186044416.0);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(weight));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(weight, 1));
    sum = _mm512_add_epi64(sum, _mm512_cvttpd_epi64(_mm512_mul_pd(low, unit)));
    sum = _mm512_add_epi64(sum, _mm512_cvttpd_epi64(_mm512_mul_pd(high, unit)));
  }
  SPECDEC_INLINE uint64_t total() const {
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(sum));
  }
};

SPECDEC_INLINE U32x16 u_set1(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
SPECDEC_INLINE U32x16 u_iota(uint32_t first) {
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_add_epi32(u_set1(first), steps);
}
SPECDEC_INLINE U32x16 u_xor3(U32x16 a, U32x16 b, U32x16 c) {
  return _mm512_ternarylogic_epi32(a, b, c, 0x96);
}
SPECDEC_INLINE void u_mul_wide(U32x16 x, uint32_t factor, U32x16* high, U32x16* low) {
  const __m512i f = u_set1(factor);
  const __m512i even = _mm512_mul_epu32(x, f);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), f);
  *low = _mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA);
  *high = _mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB);
}
SPECDEC_INLINE uint32_t lanes_below(U32x16 bits, F32x16 limit) {
  const __m512 top = _mm512_cvtepi32_ps(_mm512_srli_epi32(bits, 8));
  return _mm512_cmp_ps_mask(top, limit, _CMP_LE_OQ);
}
SPECDEC_INLINE uint32_t lanes_ge(F32x16 x, float bound) {
  return _mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_GE_OQ);
}

SPECDEC_INLINE int32_t load_i32(const int8_t* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// --- Matmul lanes: kLanes rows of a group at a time
// -------------------------------------------------

constexpr int kLanes = 16;
constexpr int kVecs = 2;
constexpr int kTileCols = 8;
using LaneF = __m512;
using LaneI = __m512i;
using LaneB = __m512i;
using LaneX = __m512i;

SPECDEC_INLINE LaneF lane_zero() { return _mm512_setzero_ps(); }
SPECDEC_INLINE LaneF lane_set1(float x) { return _mm512_set1_ps(x); }
SPECDEC_INLINE LaneF lane_mul(LaneF a, LaneF b) { return _mm512_mul_ps(a, b); }
SPECDEC_INLINE LaneF lane_fma(LaneF a, LaneF b, LaneF c) { return _mm512_fmadd_ps(a, b, c); }
SPECDEC_INLINE LaneF lane_to_float(LaneI x) { return _mm512_cvtepi32_ps(x); }
SPECDEC_INLINE void lane_store(float* p, LaneF x, int valid) {
  const int n = valid < 0 ? 0 : valid > 16 ? 16 : valid;
  _mm512_mask_storeu_ps(p, lane_mask(static_cast<size_t>(n)), x);
}
SPECDEC_INLINE LaneF lane_load_f16(const uint8_t* p) { return f_load_f16(p); }
SPECDEC_INLINE LaneF lane_load_bf16(const uint8_t* p) { return f_load_bf16(p); }
SPECDEC_INLINE LaneF lane_load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SPECDEC_INLINE LaneF lane_load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
SPECDEC_INLINE LaneF lane_load_u4_low(const uint8_t* p) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(15)));
}
SPECDEC_INLINE LaneF lane_load_u4_high(const uint8_t* p) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_cvtepi32_ps(_mm512_srli_epi32(x, 4));
}

SPECDEC_INLINE LaneX bytes_broadcast(const int8_t* x) { return _mm512_set1_epi32(load_i32(x)); }
SPECDEC_INLINE LaneB bytes_load(const uint8_t* p) { return _mm512_loadu_si512(p); }
template <int kShift, int kMask>
SPECDEC_INLINE LaneB bytes_field(LaneB x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, kShift), _mm512_set1_epi8(kMask));
}
template <int kShift, int kMask, int kTo>
SPECDEC_INLINE LaneB bytes_merge(LaneB low, LaneB x) {
  const __m512i mask = _mm512_set1_epi8(static_cast<char>(kMask << kTo));
  const __m512i moved = kTo >= kShift ? _mm512_slli_epi16(x, kTo >= kShift ? kTo - kShift : 0)
                                      : _mm512_srli_epi16(x, kTo >= kShift ? 0 : kShift - kTo);
  return _mm512_ternarylogic_epi32(moved, mask, low, 0xEA);  // (moved & mask) | low
}
SPECDEC_INLINE LaneB bytes_lookup16(LaneB x, const uint8_t* table) {
  const __m128i one = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(one), x);
}

template <int kBits>
struct DotSum {
  __m512i sum;
  SPECDEC_INLINE void begin(int32_t start) { sum = _mm512_set1_epi32(start); }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(LaneB w, LaneB x) {
    sum = _mm512_dpbusd_epi32(sum, w, x);
  }
  SPECDEC_INLINE LaneI total() const { return sum; }
};

}  // namespace
}  // namespace specdec
