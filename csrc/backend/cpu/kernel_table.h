// The hot kernels of the CPU backend as a table of function pointers, one table per ISA level.
// Every table gives the same bits. Threading and the loops over weights stay in the backend; a
// kernel sees one group of rows, one row, or one chunk.
//
// This header is included by the files that are compiled with ISA flags, so it includes nothing
// from std::.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backend/attention_rule.h"

namespace specdec {

// Rows of a weight that are interleaved in its packed form: two vectors of 16 lanes. Two, because a
// broadcast of activations costs as much as the multiplication it feeds and so has to feed more
// than one.
inline constexpr int kGroupRows = 32;
// Values of K that share one activation scale.
inline constexpr int kActBlockSize = 32;
// Most columns (rows of X) that one matmul kernel call handles.
inline constexpr int kMaxTileCols = 8;
// Most queries per call of attention_values.
inline constexpr int kValueQueries = 4;

// Packed weight formats, in the order of KernelTable::matmul.
enum class PackedFormat : int {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kMXFP4,
  kIQ4_XS,
  kIQ3_XXS,
  kIQ3_S,
  kIQ2_XXS,
  kIQ2_XS,  // and IQ2_S
  kIQ1_S,
  kIQ1_M,
  kCount,
};
inline constexpr int kPackedFormats = static_cast<int>(PackedFormat::kCount);

// 32 activations, quantised: x[i] ~ d * q[i]. What stands in `start` / `sum` depends on the
// weight's format (ActKind); [0] covers all 32 values, or the first 16 where the format has
// sub-blocks of 16.
struct ActBlock {
  int8_t q[kActBlockSize];
  float d;
  union {
    int32_t start[2];  // -zero_point * sum(q): what an integer dot product starts from
    float sum[2];      // d * sum(q): what the minimum of a weight block is multiplied by
  } u;
};

// What a weight format needs of its activations.
struct ActKind {
  int zero_point;  // of the stored unsigned weights; 0: none
  bool halves;     // sub-blocks of 16
  bool sums;       // the format has minima
};

// What the rows of a key/value cache are made of: floats, halves, or blocks of 32 int8 behind a
// half (kQ8Bytes each; as cache_row.h says).
enum class CacheRows : int { kF32, kF16, kQ8 };
inline constexpr size_t kQ8Bytes = 34;

// One query's state while it attends to the chunks of its cache in order, and one chunk's result.
struct SoftmaxState {
  float max;
  float sum;
};

// out[c, i] = sum over k of W[i, k] * x[c, k] for the 32 rows i of one packed group and `cols`
// columns, cols being the index of the function in its table + 1. group: `blocks` packed blocks,
// 64-byte aligned, see packed_weight.h; act [blocks, cols] out: rows out_stride floats apart; only
// [0, valid) of each is written.
using MatmulGroupFn = void (*)(const uint8_t* group, size_t blocks, const ActBlock* act, float* out,
                               size_t out_stride, int valid);

// out[c, r] = sum over k of W[r, k] * x[c, k] for `rows` rows and `cols` <= float_tile_cols
// columns. weights: rows of K elements, row_bytes apart, any alignment x [ceil(K / 16), cols, 16],
// zeros beyond K (separate rows would fall into the same cache sets); out [cols, out_stride]
using MatmulFloatFn = void (*)(const uint8_t* weights, size_t row_bytes, size_t k, int rows,
                               const float* x, int cols, float* out, size_t out_stride);

struct KernelTable {
  const char* name;
  int tile_cols;        // most columns per call for packed weights; functions for more are null
  int float_tile_cols;  // the same for float weights

  // Quantises one row x [32 * blocks] into blocks `stride` ActBlocks apart.
  void (*quantize_row)(const float* x, size_t blocks, ActKind kind, ActBlock* out, size_t stride);
  MatmulGroupFn matmul[kPackedFormats][kMaxTileCols];
  MatmulFloatFn matmul_f32, matmul_f16, matmul_bf16;

  // out[k] = x[k] * inv * gain[k], inv = 1 / sqrt(sum(x^2) / n + eps)
  void (*rms_norm)(const float* x, const float* gain, size_t n, float eps, float* out);
  // out[k] = (x[k] - mean) * inv * gain[k] + bias[k], inv = 1 / sqrt(variance + eps); bias or null
  void (*layer_norm)(const float* x, const float* gain, const float* bias, size_t n, float eps,
                     float* out);
  // out[i] = silu(gate[i]) * up[i]; out may be gate or up. The same with gelu_f32, and
  // clamped_swiglu_f32 (core/math.h).
  void (*silu_mul)(const float* gate, const float* up, size_t n, float* out);
  void (*gelu_mul)(const float* gate, const float* up, size_t n, float* out);
  void (*clamped_swiglu)(const float* gate, const float* up, size_t n, float* out);
  void (*gelu)(const float* x, size_t n, float* out);                    // out may be x
  void (*soft_cap)(float* x, size_t n, float cap);                       // x = cap * tanh(x / cap)
  void (*scale)(float* x, size_t n, float factor);                       // x *= factor
  void (*add)(float* x, const float* y, size_t n);                       // x += y
  void (*add_scaled)(float* x, const float* y, size_t n, float factor);  // x = fma(y, factor, x)
  // Rotates the leading 2 * pairs elements of a head in place: (x0, x1) -> (x0 c - x1 s, x0 s + x1
  // c). Element pairs are (2i, 2i + 1) if interleaved, else (i, i + pairs). cos_sin [pairs, 2]
  void (*rotate)(float* head, const float* cos_sin, size_t pairs, bool interleaved);
  // float -> IEEE half, round to nearest even
  void (*store_f16)(const float* x, size_t n, uint16_t* out);
  // float -> blocks of the kQ8 cache: x [32 * blocks], out [kQ8Bytes * blocks]
  void (*store_q8)(const float* x, size_t blocks, uint8_t* out);

  // Cache rows as floats. Both ask for the cache lines `ahead` bytes further on (0: for none).
  // keys, values [rows, D] of the given type, kQ8 with D a multiple of 32 out[d, r] = keys[r, d].
  // out [D, stride], stride a multiple of 16 and >= rows; columns up to the next multiple of 16 are
  // zeros
  void (*transpose_keys)(const void* keys, CacheRows type, size_t rows, size_t head_dim,
                         size_t ahead, float* out, size_t stride);
  // out[r, d] = values[r, d]. out [rows, D]
  void (*load_values)(const void* values, CacheRows type, size_t rows, size_t head_dim,
                      size_t ahead, float* out);
  // scores[r] = scale * dot(q, keys[:, r]) for r < rows rounded up to 16. q [D], keys [D, stride]
  // transposed
  void (*attention_scores)(const float* q, const float* keys, size_t stride, size_t rows,
                           size_t head_dim, float scale, float* scores);
  // For each of `queries` queries: scores[i, t] becomes exp(scores[i, t] - max); states[i] = max
  // and the sum of the weights. scores [queries, kAttentionChunk], t < count; states [queries]
  void (*attention_softmax)(float* scores, int queries, int count, SoftmaxState* states);
  // acc[i, d] = sum over t of weights[i, t] * values[index[t], d], serial in t, for queries i <
  // `queries` <= 4. weights [queries, kAttentionChunk], values [*, D], acc [queries, D]
  void (*attention_values)(const float* weights, int queries, const float* values,
                           const int32_t* index, int count, size_t head_dim, float* acc);
  // Merges a chunk's result (chunk, chunk_acc) into (state, acc): both rescaled to the larger
  // maximum.
  SoftmaxState (*attention_merge)(SoftmaxState state, float* acc, SoftmaxState chunk,
                                  const float* chunk_acc, size_t head_dim);
  // out[d] = acc[d] / sum; out may be acc
  void (*divide)(const float* acc, float sum, size_t n, float* out);

  // Largest allowed logit (NaN counts as -infinity). mask: bit i set = allowed, or null
  float (*max_logit)(const float* logits, const uint32_t* mask, size_t n);
  // z[i] = (logit[i] - max) * inv_temperature, -infinity where masked, NaN or of no mass; weight[i]
  // = exp(z[i]), 0 where it has no mass. z may be null. Returns the total mass.
  uint64_t (*logit_weights)(const float* logits, const uint32_t* mask, size_t n, float max,
                            float inv_temperature, float* z, float* weight);
  // Sum of surprisal_mass(weight[i], z[i]) (sampling_rule.h); and rank[i] = typical_rank(z[i],
  // mean)
  uint64_t (*surprisal_sum)(const float* z, const float* weight, size_t n);
  void (*typical_ranks)(const float* z, size_t n, float mean, float* rank);
  // Ids whose race_uniform is at most bound * weight[id] (and maybe a few more), ascending: the
  // only ones that can finish the race before `bound`. Fills at most `capacity`; returns the number
  // found, which may be larger. key: seed low, high; position low, high; purpose
  size_t (*race_candidates)(const float* weight, size_t n, const uint32_t key[5], double bound,
                            int32_t* ids, size_t capacity);

  // For the bench: int8 multiply-adds as the packed products do them, `blocks` times over the same
  // operands, with nothing to decode and nothing to fetch from memory. planes [1024] bytes below
  // 16, act [kMaxTileCols], sink [kMaxTileCols * kGroupRows]. Returns the multiply-adds done.
  uint64_t (*int8_peak)(const uint8_t* planes, const ActBlock* act, size_t blocks, float* sink);
};

// Defined in kernels_<isa>.cpp, for the levels of this architecture.
const KernelTable& kernels_scalar();
const KernelTable& kernels_avx2();
const KernelTable& kernels_avxvnni();
const KernelTable& kernels_avx512vnni();
const KernelTable& kernels_neon();
const KernelTable& kernels_neon_dotprod();

}  // namespace specdec
