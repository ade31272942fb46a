// The vector vocabulary of kernels.inl for AVX2 with FMA and F16C. See vec_scalar.h for what each
// function means: it is the readable definition, and every level gives its bits. Serves two levels:
// kernels_avxvnni.cpp defines SPECDEC_AVXVNNI, and the integer dot products use VPDPBUSD.
#pragma once

#include <immintrin.h>
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

struct F32x16 {
  __m256 a, b;
};
struct U32x16 {
  __m256i a, b;
};

SPECDEC_INLINE F32x16 f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SPECDEC_INLINE F32x16 f_set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SPECDEC_INLINE F32x16 f_load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
SPECDEC_INLINE void f_store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
// All ones in the lanes [0, n - first).
SPECDEC_INLINE __m256i lanes_before(size_t n, int first) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n) - first), index);
}
SPECDEC_INLINE F32x16 f_load_n(const float* p, size_t n) {
  return {_mm256_maskload_ps(p, lanes_before(n, 0)), _mm256_maskload_ps(p + 8, lanes_before(n, 8))};
}
SPECDEC_INLINE void f_store_n(float* p, F32x16 x, size_t n) {
  _mm256_maskstore_ps(p, lanes_before(n, 0), x.a);
  _mm256_maskstore_ps(p + 8, lanes_before(n, 8), x.b);
}
SPECDEC_INLINE F32x16 f_add(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
SPECDEC_INLINE F32x16 f_sub(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
SPECDEC_INLINE F32x16 f_mul(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
SPECDEC_INLINE F32x16 f_div(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
SPECDEC_INLINE F32x16 f_fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
SPECDEC_INLINE F32x16 f_max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
SPECDEC_INLINE F32x16 f_min(F32x16 x, F32x16 y) {
  return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)};
}

SPECDEC_INLINE float f_sum(F32x16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
SPECDEC_INLINE float f_hmax(F32x16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

SPECDEC_INLINE __m128i load_16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
SPECDEC_INLINE F32x16 f_load_f16(const uint8_t* p) {
  return {_mm256_cvtph_ps(load_16(p)), _mm256_cvtph_ps(load_16(p + 16))};
}
// Copies the first n of 16 two-byte elements; the others are zero.
struct Partial16 {
  alignas(32) uint8_t bytes[32];
  SPECDEC_INLINE Partial16(const uint8_t* p, size_t n) {
    for (size_t i = 0; i < 32; ++i) bytes[i] = i < 2 * n ? p[i] : uint8_t{0};
  }
};
SPECDEC_INLINE F32x16 f_load_f16_n(const uint8_t* p, size_t n) {
  const Partial16 part(p, n);
  return f_load_f16(part.bytes);
}
SPECDEC_INLINE __m256 widen_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
SPECDEC_INLINE F32x16 f_load_bf16(const uint8_t* p) {
  return {widen_bf16(load_16(p)), widen_bf16(load_16(p + 16))};
}
SPECDEC_INLINE F32x16 f_load_bf16_n(const uint8_t* p, size_t n) {
  const Partial16 part(p, n);
  return f_load_bf16(part.bytes);
}
SPECDEC_INLINE F32x16 f_set1_f16(const uint8_t* p) {
  int16_t half;
  __builtin_memcpy(&half, p, sizeof(half));
  const __m256 all = _mm256_cvtph_ps(_mm_set1_epi16(half));
  return {all, all};
}
SPECDEC_INLINE F32x16 f_load_i8(const uint8_t* p) {
  const __m128i x = load_16(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
SPECDEC_INLINE void f_store_f16_n(uint16_t* p, F32x16 x, size_t n) {
  alignas(32) uint16_t half[16];
  __m128i* out = reinterpret_cast<__m128i*>(half);
  _mm_store_si128(out, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_store_si128(out + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
  for (size_t i = 0; i < n; ++i) p[i] = half[i];
}

SPECDEC_INLINE __m256 add_exponent_8(__m256 y, __m256 shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
}
SPECDEC_INLINE F32x16 f_add_exponent(F32x16 y, F32x16 shifted) {
  return {add_exponent_8(y.a, shifted.a), add_exponent_8(y.b, shifted.b)};
}
SPECDEC_INLINE F32x16 f_where_ge(F32x16 x, float bound, F32x16 yes, F32x16 no) {
  const __m256 limit = _mm256_set1_ps(bound);
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, limit, _CMP_GE_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, limit, _CMP_GE_OQ))};
}
SPECDEC_INLINE F32x16 f_where_bits(uint32_t bits, F32x16 yes, F32x16 no) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  const __m256i low = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i high = _mm256_slli_epi32(low, 8);
  const __m256i in_a = _mm256_cmpeq_epi32(_mm256_and_si256(all, low), low);
  const __m256i in_b = _mm256_cmpeq_epi32(_mm256_and_si256(all, high), high);
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(in_a)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(in_b))};
}

SPECDEC_INLINE F32x16 f_spread_even(F32x16 x) {
  return {_mm256_moveldup_ps(x.a), _mm256_moveldup_ps(x.b)};
}
SPECDEC_INLINE F32x16 f_spread_odd(F32x16 x) {
  return {_mm256_movehdup_ps(x.a), _mm256_movehdup_ps(x.b)};
}
SPECDEC_INLINE F32x16 f_swap_pairs(F32x16 x) {
  return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)};
}
SPECDEC_INLINE F32x16 f_negate_even(F32x16 x) {
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000ll));
  return {_mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign)};
}
template <int kPick>
SPECDEC_INLINE __m256 take_8(__m256 x, __m256 y) {
  const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(x, y, kPick));  // x0 y0 x1 y1 by 64 bits
  return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xD8));
}
SPECDEC_INLINE F32x16 f_take_even(F32x16 x, F32x16 y) {
  return {take_8<0x88>(x.a, x.b), take_8<0x88>(y.a, y.b)};
}
SPECDEC_INLINE F32x16 f_take_odd(F32x16 x, F32x16 y) {
  return {take_8<0xDD>(x.a, x.b), take_8<0xDD>(y.a, y.b)};
}

SPECDEC_INLINE void transpose_8(const __m256 (&x)[8], __m256 (&out)[8]) {
  __m256 y[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
    const __m256 d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
    y[i] = _mm256_shuffle_ps(a, c, 0x44);
    y[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
    y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    y[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x20);
    out[i + 4] = _mm256_permute2f128_ps(y[i], y[i + 4], 0x31);
  }
}
SPECDEC_INLINE void f_transpose(F32x16 (&x)[16]) {
  __m256 in[4][8], out[4][8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    in[0][i] = x[i].a;
    in[1][i] = x[i].b;
    in[2][i] = x[i + 8].a;
    in[3][i] = x[i + 8].b;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) transpose_8(in[i], out[i]);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    x[i] = {out[0][i], out[2][i]};
    x[i + 8] = {out[1][i], out[3][i]};
  }
}

SPECDEC_INLINE uint32_t max_abs_bits(F32x16 x, F32x16 y) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_and_si256(_mm256_castps_si256(x.a), magnitude);
  m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(x.b), magnitude));
  m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(y.a), magnitude));
  m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(y.b), magnitude));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
SPECDEC_INLINE int32_t round_to_i8(F32x16 x, int8_t* out) {
  const __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
  const __m256i eight = _mm256_add_epi32(a, b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return _mm_cvtsi128_si32(four);
}

struct MassSum {
  __m256i sum = _mm256_setzero_si256();
  // floor, then adding 2^52 leaves the integer in the low bits of the double.
  SPECDEC_INLINE void add_4(__m128 weight) {
    const __m256d scaled = _mm256_mul_pd(_mm256_cvtps_pd(weight), _mm256_set1_pd(17592186044416.0));
    const __m256d magic = _mm256_set1_pd(4503599627370496.0);
    const __m256d whole = _mm256_round_pd(scaled, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m256i bits = _mm256_castpd_si256(_mm256_add_pd(whole, magic));
    sum = _mm256_add_epi64(sum, _mm256_xor_si256(bits, _mm256_castpd_si256(magic)));
  }
  SPECDEC_INLINE void add(F32x16 weight) {
    add_4(_mm256_castps256_ps128(weight.a));
    add_4(_mm256_extractf128_ps(weight.a, 1));
    add_4(_mm256_castps256_ps128(weight.b));
    add_4(_mm256_extractf128_ps(weight.b, 1));
  }
  SPECDEC_INLINE uint64_t total() const {
    const __m128i two =
        _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return static_cast<uint64_t>(_mm_cvtsi128_si64(two)) +
           static_cast<uint64_t>(_mm_extract_epi64(two, 1));
  }
};

SPECDEC_INLINE U32x16 u_set1(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
SPECDEC_INLINE U32x16 u_iota(uint32_t first) {
  const __m256i base = _mm256_set1_epi32(static_cast<int>(first));
  return {_mm256_add_epi32(base, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
          _mm256_add_epi32(base, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15))};
}
SPECDEC_INLINE U32x16 u_xor3(U32x16 x, U32x16 y, U32x16 z) {
  return {_mm256_xor_si256(_mm256_xor_si256(x.a, y.a), z.a),
          _mm256_xor_si256(_mm256_xor_si256(x.b, y.b), z.b)};
}
SPECDEC_INLINE void mul_wide_8(__m256i x, __m256i f, __m256i* high, __m256i* low) {
  const __m256i even = _mm256_mul_epu32(x, f);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), f);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
}
SPECDEC_INLINE void u_mul_wide(U32x16 x, uint32_t factor, U32x16* high, U32x16* low) {
  const __m256i f = _mm256_set1_epi32(static_cast<int>(factor));
  mul_wide_8(x.a, f, &high->a, &low->a);
  mul_wide_8(x.b, f, &high->b, &low->b);
}
SPECDEC_INLINE uint32_t lanes_below(U32x16 bits, F32x16 limit) {
  const __m256 a = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits.a, 8));
  const __m256 b = _mm256_cvtepi32_ps(_mm256_srli_epi32(bits.b, 8));
  const int in_a = _mm256_movemask_ps(_mm256_cmp_ps(a, limit.a, _CMP_LE_OQ));
  const int in_b = _mm256_movemask_ps(_mm256_cmp_ps(b, limit.b, _CMP_LE_OQ));
  return static_cast<uint32_t>(in_a | (in_b << 8));
}
SPECDEC_INLINE uint32_t lanes_ge(F32x16 x, float bound) {
  const __m256 limit = _mm256_set1_ps(bound);
  const int in_a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, limit, _CMP_GE_OQ));
  const int in_b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit, _CMP_GE_OQ));
  return static_cast<uint32_t>(in_a | (in_b << 8));
}

SPECDEC_INLINE int32_t load_i32(const int8_t* p) {
  int32_t value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

// --- Matmul lanes: kLanes rows of a group at a time
// -------------------------------------------------

constexpr int kLanes = 8;
constexpr int kVecs = 2;
constexpr int kTileCols = 4;
using LaneF = __m256;
using LaneI = __m256i;
using LaneB = __m256i;
using LaneX = __m256i;

SPECDEC_INLINE LaneF lane_zero() { return _mm256_setzero_ps(); }
SPECDEC_INLINE LaneF lane_set1(float x) { return _mm256_set1_ps(x); }
SPECDEC_INLINE LaneF lane_mul(LaneF x, LaneF y) { return _mm256_mul_ps(x, y); }
SPECDEC_INLINE LaneF lane_fma(LaneF x, LaneF y, LaneF z) { return _mm256_fmadd_ps(x, y, z); }
SPECDEC_INLINE LaneF lane_to_float(LaneI x) { return _mm256_cvtepi32_ps(x); }
SPECDEC_INLINE void lane_store(float* p, LaneF x, int valid) {
  _mm256_maskstore_ps(
      p, _mm256_cmpgt_epi32(_mm256_set1_epi32(valid), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
      x);
}
SPECDEC_INLINE __m256i widen_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
SPECDEC_INLINE LaneF lane_load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load_16(p)); }
SPECDEC_INLINE LaneF lane_load_bf16(const uint8_t* p) { return widen_bf16(load_16(p)); }
SPECDEC_INLINE LaneF lane_load_u8(const uint8_t* p) { return _mm256_cvtepi32_ps(widen_u8(p)); }
SPECDEC_INLINE LaneF lane_load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
SPECDEC_INLINE LaneF lane_load_u4_low(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(widen_u8(p), _mm256_set1_epi32(15)));
}
SPECDEC_INLINE LaneF lane_load_u4_high(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_srli_epi32(widen_u8(p), 4));
}

SPECDEC_INLINE LaneX bytes_broadcast(const int8_t* x) { return _mm256_set1_epi32(load_i32(x)); }
SPECDEC_INLINE LaneB bytes_load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
template <int kShift, int kMask>
SPECDEC_INLINE LaneB bytes_field(LaneB x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, kShift), _mm256_set1_epi8(kMask));
}
template <int kShift, int kMask, int kTo>
SPECDEC_INLINE LaneB bytes_merge(LaneB low, LaneB x) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(kMask << kTo));
  const __m256i moved = kTo >= kShift ? _mm256_slli_epi16(x, kTo >= kShift ? kTo - kShift : 0)
                                      : _mm256_srli_epi16(x, kTo >= kShift ? 0 : kShift - kTo);
  return _mm256_or_si256(_mm256_and_si256(moved, mask), low);
}
SPECDEC_INLINE LaneB bytes_lookup16(LaneB x, const uint8_t* table) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load_16(table)), x);
}

#ifdef SPECDEC_AVXVNNI

template <int kBits>
struct DotSum {
  __m256i sum;
  SPECDEC_INLINE void begin(int32_t start) { sum = _mm256_set1_epi32(start); }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(LaneB w, LaneB x) {
    sum = _mm256_dpbusd_avx_epi32(sum, w, x);
  }
  SPECDEC_INLINE LaneI total() const { return sum; }
};

#else

// vpmaddubsw adds two products into 16 bits: 2 * 127 * (2^bits - 1) each. Summing more of them
// before widening is safe as long as the total stays below 2^15.
template <int kBits>
struct DotSum {
  static constexpr int kPairSums = kBits <= 4 ? 8 : kBits == 5 ? 4 : kBits == 6 ? 2 : 1;
  __m256i sum, narrow;
  SPECDEC_INLINE void begin(int32_t start) {
    sum = kBits == 8 ? _mm256_setzero_si256() : _mm256_set1_epi32(start);
  }
  template <int kQuad, bool kFirst, bool kLast>
  SPECDEC_INLINE void add(LaneB w, LaneB a) {
    if constexpr (kBits == 8) {
      // Bytes of 8 bits would saturate: use |w - 128| * (sign(w - 128) * x), whose sum needs no
      // zero point.
      const __m256i w_signed = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
      a = _mm256_sign_epi8(a, w_signed);
      w = _mm256_abs_epi8(w_signed);
    }
    const __m256i pairs = _mm256_maddubs_epi16(w, a);
    narrow = kFirst || kQuad % kPairSums == 0 ? pairs : _mm256_add_epi16(narrow, pairs);
    if (kLast || kQuad % kPairSums == kPairSums - 1) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
    }
  }
  SPECDEC_INLINE LaneI total() const { return sum; }
};

#endif

}  // namespace
}  // namespace specdec
