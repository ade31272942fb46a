// The kernels, written once over the vocabulary of a vec_<isa>.h and compiled once per ISA level by
// a wrapper kernels_<isa>.cpp, which includes the vec header first. Everything is in an anonymous
// namespace and nothing comes from std::, so that no code compiled with ISA flags can be picked by
// the linker for use on other machines.
//
// Numerics: a reduction of floats runs on 16 virtual lanes and ends in a fixed tree; a fused
// multiply-add stands only where f_fma or lane_fma is written. So all levels give the same bits.

#include "backend/cpu/kernel_table.h"
#include "core/codebooks.h"
#include "core/math.h"

namespace specdec {
namespace {

// How far ahead of its use a weight is asked for: enough for the latency of memory at full
// bandwidth.
constexpr size_t kPrefetchBytes = 8192;

template <size_t kBytes>
SPECDEC_INLINE void prefetch_lines(const uint8_t* p) {
#pragma GCC unroll 20
  for (size_t i = 0; i < kBytes; i += 64) __builtin_prefetch(p + kPrefetchBytes + i, 0, 3);
}

// Calls body(i, n) for runs of 16 elements and once for the n < 16 that remain.
template <class Body>
SPECDEC_INLINE void for_each_16(size_t count, const Body& body) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, size_t{16});
  if (i < count) body(i, count - i);
}

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

#include "backend/cpu/kernels_attention.inl"  // NOLINT
#include "backend/cpu/kernels_matmul.inl"     // NOLINT
#include "backend/cpu/kernels_peak.inl"       // NOLINT
#include "backend/cpu/kernels_rows.inl"       // NOLINT
#include "backend/cpu/kernels_sampling.inl"   // NOLINT

// Entries beyond the level's tile stay null: the backend never asks for them.
template <class Format, int kCols = 1>
constexpr void fill_matmul(MatmulGroupFn (&table)[kMaxTileCols]) {
  if constexpr (kCols <= kTileCols) {
    table[kCols - 1] = matmul_group<Format, kCols>;
    fill_matmul<Format, kCols + 1>(table);
  }
}

constexpr KernelTable make_table(const char* name) {
  KernelTable t{};
  t.name = name;
  t.tile_cols = kTileCols;
  t.float_tile_cols = kFloatTileCols;
  t.quantize_row = quantize_row;
  fill_matmul<FormatQ4_0>(t.matmul[static_cast<int>(PackedFormat::kQ4_0)]);
  fill_matmul<FormatQ4_1>(t.matmul[static_cast<int>(PackedFormat::kQ4_1)]);
  fill_matmul<FormatQ5_0>(t.matmul[static_cast<int>(PackedFormat::kQ5_0)]);
  fill_matmul<FormatQ5_1>(t.matmul[static_cast<int>(PackedFormat::kQ5_1)]);
  fill_matmul<FormatQ8_0>(t.matmul[static_cast<int>(PackedFormat::kQ8_0)]);
  fill_matmul<FormatQ2_K>(t.matmul[static_cast<int>(PackedFormat::kQ2_K)]);
  fill_matmul<FormatQ3_K>(t.matmul[static_cast<int>(PackedFormat::kQ3_K)]);
  fill_matmul<FormatQ4_K>(t.matmul[static_cast<int>(PackedFormat::kQ4_K)]);
  fill_matmul<FormatQ5_K>(t.matmul[static_cast<int>(PackedFormat::kQ5_K)]);
  fill_matmul<FormatQ6_K>(t.matmul[static_cast<int>(PackedFormat::kQ6_K)]);
  fill_matmul<FormatIQ4_NL>(t.matmul[static_cast<int>(PackedFormat::kIQ4_NL)]);
  fill_matmul<FormatMXFP4>(t.matmul[static_cast<int>(PackedFormat::kMXFP4)]);
  fill_matmul<FormatIQ4_XS>(t.matmul[static_cast<int>(PackedFormat::kIQ4_XS)]);
  fill_matmul<FormatIQ3_XXS>(t.matmul[static_cast<int>(PackedFormat::kIQ3_XXS)]);
  fill_matmul<FormatIQ3_S>(t.matmul[static_cast<int>(PackedFormat::kIQ3_S)]);
  fill_matmul<FormatIQ2_XXS>(t.matmul[static_cast<int>(PackedFormat::kIQ2_XXS)]);
  fill_matmul<FormatIQ2_XS>(t.matmul[static_cast<int>(PackedFormat::kIQ2_XS)]);
  fill_matmul<FormatIQ1_S>(t.matmul[static_cast<int>(PackedFormat::kIQ1_S)]);
  fill_matmul<FormatIQ1_M>(t.matmul[static_cast<int>(PackedFormat::kIQ1_M)]);
  t.matmul_f32 = matmul_float<LoadF32>;
  t.matmul_f16 = matmul_float<LoadF16>;
  t.matmul_bf16 = matmul_float<LoadBF16>;
  t.rms_norm = rms_norm;
  t.layer_norm = layer_norm;
  t.silu_mul = silu_mul;
  t.gelu_mul = gelu_mul;
  t.clamped_swiglu = clamped_swiglu;
  t.gelu = gelu;
  t.soft_cap = soft_cap;
  t.scale = scale;
  t.add = add;
  t.add_scaled = add_scaled;
  t.rotate = rotate;
  t.store_f16 = store_f16;
  t.store_q8 = store_q8;
  t.transpose_keys = transpose_keys;
  t.load_values = load_values;
  t.attention_scores = attention_scores;
  t.attention_softmax = attention_softmax;
  t.attention_values = attention_values;
  t.attention_merge = attention_merge;
  t.divide = divide;
  t.max_logit = max_logit;
  t.logit_weights = logit_weights;
  t.surprisal_sum = surprisal_sum;
  t.typical_ranks = typical_ranks;
  t.race_candidates = race_candidates;
  t.int8_peak = int8_peak;
  return t;
}

}  // namespace
}  // namespace specdec
