// The kernels' host side: each function checks nothing and queues its kernels on a stream. Pointers
// are device memory. One .cu file per family.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/weight_layout.h"
#include "core/dtype.h"

namespace specdec::cuda {

// --- embed.cu ---

// The tokens of a pass: below 0 one of `drawn`, see backend.h.
struct TokenRows {
  const int* tokens = nullptr;        // [count]
  const DrawnToken* drawn = nullptr;  // or null
  int count = 0;
};
// out [count, K] = rows of the table.
void queue_embed(StreamHandle stream, DType dtype, const QuantizedView& table,
                 const TokenRows& rows, float* out);
void queue_embed(StreamHandle stream, DType dtype, const FloatView& table, const TokenRows& rows,
                 float* out);

// --- rows.cu ---

// out[i, k] = (x[i, k] / sqrt(mean(x[i]^2) + eps)) * gain[k]. x, out [rows, cols], may be the same.
// quantized, unless empty: the same as int8
void queue_rms_norm(StreamHandle stream, int rows, int cols, const float* x, const float* gain,
                    float eps, float* out, const ActivationView& quantized);
// x += y. [count]
void queue_add(StreamHandle stream, std::int64_t count, float* x, const float* y);
// out[i * out_stride + k] = x[i * x_stride + k], k in [0, cols)
void queue_copy_rows(StreamHandle stream, int rows, int cols, const float* x, std::int64_t x_stride,
                     float* out, std::int64_t out_stride);
// x[i, k] += silu(y[i, k] + bias[k]). x, y [rows, cols]
void queue_add_silu(StreamHandle stream, int rows, int cols, float* x, const float* y,
                    const float* bias);
// out[ids[i]] = logits[i], -infinity elsewhere. logits, ids [count], out [vocab]
void queue_scatter(StreamHandle stream, int count, const float* logits, const int* ids, int vocab,
                   float* out);
// The rows of x [rows, 32 * out.blocks] that the columns take, as int8.
void queue_quantize(StreamHandle stream, const Columns& columns, const float* x,
                    const ActivationView& out);

// --- features.cu: what some architectures have beside the above ---

// out[i, k] = (x[i, k] - mean) / sqrt(variance + eps) * gain[k] + bias[k]; bias may be null
void queue_layer_norm(StreamHandle stream, int rows, int cols, const float* x, const float* gain,
                      const float* bias, float eps, float* out);
// x[i, k] += bias[k]. x [rows, cols]
void queue_add_bias(StreamHandle stream, int rows, int cols, float* x, const float* bias);
// x[i, k] *= factors[i]. x [rows, cols]
void queue_scale_rows(StreamHandle stream, int rows, int cols, float* x, const float* factors);
// x *= factor; x = cap * tanh(x / cap). [count]
void queue_scale(StreamHandle stream, std::int64_t count, float* x, float factor);
void queue_soft_cap(StreamHandle stream, std::int64_t count, float* x, float cap);
// x[i, k] = fma(y[i, k], 1 / (1 + exp(-gate[i])), x[i, k])
void queue_add_gated(StreamHandle stream, int rows, int cols, float* x, const float* y,
                     const float* gate);

// --- hidden.cu ---

// What the products with gate and up gave, [columns, F] each; without a gate: gelu(up). Biases [F],
// or [X, F] of a mixture; or null.
struct Hidden {
  Activation activation = Activation::kSilu;
  const float* gate = nullptr;
  const float* gate_bias = nullptr;
  const float* up = nullptr;
  const float* up_bias = nullptr;
};
// out [columns, F] = activation(gate + bias, up + bias), may be up; or as int8.
void queue_activate(StreamHandle stream, const Columns& columns, int features, const Hidden& hidden,
                    float* out);
void queue_activate_quantize(StreamHandle stream, const Columns& columns, const Hidden& hidden,
                             const ActivationView& out);

// --- experts.cu ---

// The experts of each row, by ascending id, and their weights [rows, used]; logits [rows, experts].
// See expert_rule.h.
void queue_choose_experts(StreamHandle stream, int rows, int experts, int used,
                          bool softmax_of_used, float scale, const float* logits, int* ids,
                          float* weights);
// Shares the turns [rows, used] out to columns: what columns.matrices and columns.sources point to,
// and the column of each turn. ids, places [turns]
void queue_share_out(StreamHandle stream, int turns, int used, int experts, const int* ids,
                     const Columns& columns, MatrixColumns* parts, ExpertColumn* sources,
                     int* places);
// out[i] = sum over j of weights[i, j] * (y[places[i, j]] + bias[ids[i, j]]), a fused multiply-add
// each, from 0. y [columns, cols], bias [experts, cols] or null
void queue_combine_experts(StreamHandle stream, int rows, int used, int cols, const float* y,
                           const int* places, const int* ids, const float* weights,
                           const float* bias, float* out);

// --- products: out [columns, N] = x W^T, of each column with its matrix ---

// Weights of one type and one K that multiply the same x, in one launch: outs[i] [columns, N_i].
template <class View>
struct Products {
  static constexpr int kMost = 3;
  View weights[kMost];
  float* outs[kMost] = {};
  int count = 0;
};
using QuantizedProducts = Products<QuantizedView>;
using FloatProducts = Products<FloatView>;

// matmul_few.cu: up to kFewColumns columns of a matrix; matmul_tensor.cu: any number. The bits are
// the same.
inline constexpr int kFewColumns = 2;
void queue_multiply_few(StreamHandle stream, DType dtype, const QuantizedProducts& products,
                        const ActivationView& x, const Columns& columns);
void queue_multiply_tensor(StreamHandle stream, DType dtype, const QuantizedProducts& products,
                           const ActivationView& x, const Columns& columns);

// matmul_float.cu. The rows of x [rows, cols] that the columns take, in the order of the weights:
// arranged [columns, runs, 16, per_lane]
void queue_arrange(StreamHandle stream, const Columns& columns, int cols, int per_lane,
                   const float* x, float* arranged);
void queue_multiply_float(StreamHandle stream, DType dtype, const FloatProducts& products,
                          const float* arranged, const Columns& columns);

// --- cache.cu ---

// A segment's key or value rows and where they go.
struct CacheTarget {
  DType dtype = DType::kF16;
  std::uint8_t* keys = nullptr;  // of the layer, head 0, position 0
  std::uint8_t* values = nullptr;
  const int* base = nullptr;     // [1] the first new position
  std::int64_t head_stride = 0;  // bytes from one head to the next
  int row_bytes = 0;
};
struct RotaryShape {
  int heads = 0, kv_heads = 0, head_dim = 0;  // H, Hkv, D
  int rope_dims = 0;
  bool interleaved = false;
};
inline constexpr int kMaxHeadDim = 256;

// Rotates q [rows, H, D] in place, and k [rows, Hkv, D]; stores k and v. cos_sin [rows,
// rope_dims / 2, 2]
void queue_rotate_and_store(StreamHandle stream, int rows, const RotaryShape& shape, float* q,
                            const float* k, const float* v, const float* cos_sin,
                            const CacheTarget& target);
// In each of `heads` consecutive [capacity, row_bytes] arrays of keys and values: row base + i =
// row base + kept[i], ascending. kept [count]
void queue_keep_rows(StreamHandle stream, int heads, std::int64_t head_stride, int row_bytes,
                     std::uint8_t* keys, std::uint8_t* values, int base, const int* kept,
                     int count);

// --- attention.cu ---

// Queries (row, head of a kv head) that one thread block has.
inline constexpr int kAttentionTile = 8;

struct AttentionSegment {
  DType dtype = DType::kF16;
  const std::uint8_t* keys = nullptr;  // of the layer, head 0, position 0
  const std::uint8_t* values = nullptr;
  std::int64_t head_stride = 0;  // bytes
  int row_bytes = 0;
  const int* base_at = nullptr;  // [1] cached positions before the segment
  int base = 0;                  // the kernels read it from there
  int rows = 0;
  const int* paths = nullptr;  // [rows, rows] ancestors in depth order, then itself; null: a chain
  const int* lengths = nullptr;  // [rows] of the paths
  const float* q = nullptr;      // [rows, H, D]
  float* out = nullptr;          // [rows, H, D]
  int heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 0.0f;
  int window = 0;                // positions that a row sees, 0: all
  float score_cap = 0.0f;        // 0: none
  const float* sinks = nullptr;  // [H], or null
  int chunks = 0;                // of the longest row, or more
  // To share the chunks out over blocks, units of `unit_chunks` each (1 or kSpanChunks); null: one
  // block sees all chunks of its rows.
  float* partials = nullptr;  // [rows, H, units, 2 + D]
  int unit_chunks = 1, units = 0;
  ActivationView quantized;  // [rows, H * D] as int8, where there are partials; or empty
};
void queue_attention(StreamHandle stream, const AttentionSegment& segment);
// Its last part, of the units' results.
void queue_attention_merge(StreamHandle stream, const AttentionSegment& segment);

}  // namespace specdec::cuda
