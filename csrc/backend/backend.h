// THE CONTRACT between the models and what computes them. A backend knows tensors and shapes, never
// models, drafters or requests. Some twenty coarse operations; the virtual call is noise at this
// grain.
//
// Dimensions: M rows of this pass, N out features, K in features, E model width, F feed-forward
// width, H query heads, Hkv key/value heads, D head size, T cached positions, V vocabulary, L
// layers.
//
// Memory: every `float*` of an operation is memory of this backend (allocate()), row-major, no
// padding; inputs and outputs do not overlap unless the operation says so. `TokenId*`, `Pass` and
// everything named host_* is host memory, read before the call returns.
//
// Numerics, promised by the `cpu` and `cuda` backends and trivially by `ref`: the result of a row
// depends only on that row's inputs and on the cache rows it attends to; never on M, on the other
// rows, on the thread count or on how the prompt was split into passes. See design notes in
// README.md here.
//
// Threads: a Backend may be used by several threads at once, a Workspace by one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/sampling_rule.h"
#include "backend/token_counts.h"
#include "core/cancel.h"
#include "core/dtype.h"
#include "core/host_device.h"
#include "core/tensor.h"

namespace specdec {

// Memory of a backend. RAII.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual void* data() = 0;
  virtual std::size_t bytes() const = 0;
  float* f32() { return static_cast<float*>(data()); }
};

// A weight matrix [N, K] in the backend's own layout, made once at load, immutable; or a stack of
// equal ones [X, N, K], the experts of a mixture, of which rows and columns are those of one.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual DType dtype() const = 0;
  virtual std::size_t matrices() const { return 1; }  // X
  virtual std::size_t rows() const = 0;               // N
  virtual std::size_t cols() const = 0;               // K
  virtual std::size_t bytes() const = 0;              // memory it holds beyond the mapped file
};

// What a weight will be used for: an embedding table that is not the output matrix too is only ever
// looked up, and needs no layout of its own.
enum class WeightUse : std::uint8_t { kProducts, kLookup };

// Passes that a device recorded, and how often one was repeated instead of queued anew.
struct RecordingCounts {
  std::size_t recorded = 0, repeated = 0;
};

// Scratch memory of one session's passes and, on a device, the stream they run on: operations given
// the same Workspace take effect in order.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual std::size_t bytes() const = 0;
  virtual RecordingCounts recordings() const { return {}; }

  // The time of operations themselves: a device runs them later than they are given, and one after
  // the other what the host does not wait for one by one. ms_since_mark waits for those that were
  // given since mark_time, and returns how long they took.
  virtual void mark_time() { mark_ = std::chrono::steady_clock::now(); }
  virtual double ms_since_mark() {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    return Milliseconds(std::chrono::steady_clock::now() - mark_).count();
  }

 private:
  std::chrono::steady_clock::time_point mark_;
};

// The contiguous key/value cache of one sequence: keys and values each [L, Hkv, capacity, D]. How a
// row [D] is stored: cache_row.h.
struct KvCacheView {
  DType dtype = DType::kF16;  // kF32, kF16 or kQ8_0
  std::int32_t layers = 0, kv_heads = 0, head_dim = 0;
  std::int32_t capacity = 0;  // positions
  std::byte* keys = nullptr;
  std::byte* values = nullptr;

  // Of one position of a head.
  std::size_t row_bytes() const {
    return specdec::row_bytes(dtype, static_cast<std::size_t>(head_dim));
  }
  // Byte offset of [layer, head, 0, 0].
  std::size_t head_offset(std::int32_t layer, std::int32_t head) const {
    return (static_cast<std::size_t>(layer) * static_cast<std::size_t>(kv_heads) +
            static_cast<std::size_t>(head)) *
           static_cast<std::size_t>(capacity) * row_bytes();
  }
  // Byte offset of [layer, head, position, 0].
  std::size_t row_offset(std::int32_t layer, std::int32_t head, std::int32_t position) const {
    return head_offset(layer, head) + static_cast<std::size_t>(position) * row_bytes();
  }
};

// One sequence's rows in a pass. Row i of the segment is stored at cache row base + i; it attends
// to the cached rows [0, base), to its ancestors within the segment, and to itself. parents[i] is
// the segment row before it, or -1 for the cached prefix; parents[i] < i. A chain has parents[i] =
// i - 1.
struct Segment {
  KvCacheView cache;
  std::int32_t base = 0;       // T: cached positions before this pass
  std::int32_t first_row = 0;  // of the pass's M rows
  std::int32_t rows = 0;
  const std::int32_t* parents = nullptr;  // [rows]
  bool is_chain = true;
};

// A token drawn from a distribution, and the distribution's total mass.
struct DrawnToken {
  TokenId token = 0;
  std::uint64_t total = 0;
};

// A token that was drawn and lies in the backend's memory, so that the host need not wait for it:
// where token ids are asked for together with `drawn`, an id below 0 stands for the token of
// drawn[-1 - id].
SPECDEC_HD constexpr TokenId token_in_place(std::int32_t place) { return -1 - place; }
SPECDEC_HD constexpr std::int32_t place_of(TokenId token) { return -1 - token; }
// For host backends. Without `drawn` a strange id stays as it is.
inline TokenId known_token(TokenId token, const DrawnToken* drawn) {
  return token >= 0 || drawn == nullptr ? token : drawn[place_of(token)].token;
}

// Everything of a pass that its operations share; built once per pass by the model.
struct Pass {
  std::int32_t rows = 0;                    // M
  const TokenId* tokens = nullptr;          // [M]
  const DrawnToken* drawn = nullptr;        // of tokens below 0, backend memory; or null
  const std::int32_t* positions = nullptr;  // [M]: base + depth in the tree
  const float* rope_cos_sin = nullptr;      // [M, rope_dims / 2, 2], see RopeLayout; backend memory
  const Segment* segments = nullptr;        // [segment_count]
  std::int32_t segment_count = 0;
};

// Which elements of a head rotate together.
enum class RopeLayout : std::uint8_t {
  kInterleaved,  // (2i, 2i + 1): what GGUF `llama` files hold
  kHalves,       // (i, i + rope_dims / 2)
};

struct AttentionShape {
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;  // H, Hkv, D; H is a multiple of Hkv
  std::int32_t rope_dims = 0;                          // leading elements of a head that rotate
  RopeLayout rope_layout = RopeLayout::kInterleaved;
  float scale = 0.0f;       // of the scores, usually 1 / sqrt(D)
  std::int32_t window = 0;  // a row at position p sees positions > p - window only; 0: all
  float score_cap = 0.0f;   // scores s become cap * tanh(s / cap); 0: they stay
  // [H], backend memory: a score more in each head's softmax, whose value is zero; or null.
  const float* sinks = nullptr;
};

// What becomes of queries and keys between projection and rotation.
enum class QkNorm : std::uint8_t {
  kNone,
  kPerHead,  // RMS norm of each head; gains [D]
  kPerRow,   // of all heads of a row together; gains [H * D] and [Hkv * D]
};

// Pointers to floats are backend memory, null where a model has no such vector.
struct QkvWeights {
  const Weight* q = nullptr;      // [H * D, E]
  const Weight* k = nullptr;      // [Hkv * D, E]
  const Weight* v = nullptr;      // [Hkv * D, E]
  const float* q_bias = nullptr;  // [H * D], added before the norm
  const float* k_bias = nullptr;  // [Hkv * D]
  const float* v_bias = nullptr;  // [Hkv * D]
  QkNorm norm = QkNorm::kNone;
  const float* q_gain = nullptr;
  const float* k_gain = nullptr;
  float norm_eps = 0.0f;
};

enum class Activation : std::uint8_t {
  kSilu,  // silu(gate) * up, silu(g) = g / (1 + exp(-g))
  kGelu,  // gelu(gate) * up, gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3)))
  // gpt-oss: g = min(gate, 7), u = clamp(up, -7, 7): g / (1 + exp(-1.702 g)) * (u + 1)
  kClampedSwiglu,
};

// Without a gate: gelu(up). In a mixture the weights are stacks of X and the biases [X, F], [X, E].
struct MlpWeights {
  const Weight* gate = nullptr;  // [F, E], or null
  const Weight* up = nullptr;    // [F, E]
  const Weight* down = nullptr;  // [E, F]
  Activation activation = Activation::kSilu;
  const float* gate_bias = nullptr;  // [F], backend memory, or null
  const float* up_bias = nullptr;    // [F]
  const float* down_bias = nullptr;  // [E]
};

// A mixture of experts: each row goes to the `used` experts with the largest router logits, ties to
// the lowest id. See expert_rule.h.
struct ExpertWeights {
  const Weight* router = nullptr;      // [X, E]
  const float* router_bias = nullptr;  // [X], backend memory, or null
  MlpWeights mlp;
  std::int32_t used = 0;
  bool softmax_of_used = false;  // a weight is a softmax over the used experts; else over all
  float weight_scale = 1.0f;
};

// --- Verify: drafted tokens against the target's logits
// -------------------------------------------

enum class AcceptRule : std::uint8_t { kCoupled, kRejection };

// The randomness and the sampling chain of a request, as the verify operation needs them.
struct DrawParams {
  FilterParams filter;
  AcceptRule rule = AcceptRule::kCoupled;  // irrelevant at temperature 0
  std::uint64_t seed = 0;
  std::int32_t vocab = 0;  // tokens that may be drawn: ids [0, vocab); logits rows may be longer
  PenaltyParams penalties;
  std::span<const LogitBias> bias;  // host; each id once, all in [0, vocab)

  // Are logits changed before the filters see them?
  bool adjusts_logits() const { return penalties.active() || !bias.empty(); }
};

// The natural log-probability of a token, from raw logits.
struct TokenLogprob {
  TokenId id;
  float logprob;
};

// A row i of logits [m + 1, row_stride] scores the token after node i - 1 (row 0: after the pending
// token). Node i was drafted for the position `position` + depth(i), depth of a root being 0.
struct VerifyInput {
  const float* logits = nullptr;  // [m + 1, row_stride], backend memory
  std::int64_t row_stride = 0;
  std::int32_t nodes = 0;           // m
  const TokenId* tokens = nullptr;  // [m]
  // Of tokens below 0, backend memory; or null. A node whose token is below 0 even there is none.
  const DrawnToken* drawn = nullptr;
  const std::int32_t* parents = nullptr;    // [m], -1 = pending
  const std::int32_t* prob_rows = nullptr;  // [m], -1 = deterministic; else a row of draft_dists
  std::int32_t draft_rows = 0;              // r
  // [r], weights [vocab], backend memory; for a token in `drawn` the total is the one there.
  const DistributionView* draft_dists = nullptr;
  const std::uint32_t* mask_bits =
      nullptr;                 // [m + 1, ceil(vocab / 32)] host, bit set = allowed; or null
  std::uint64_t position = 0;  // index in the text of the token after the pending one
  // Of the text up to and including the pending token; may be null where draw.penalties is off. A
  // node's ancestors count as well, each row with those that it has.
  const TokenCounts* counts = nullptr;
  DrawParams draw;
};

struct Verdict {
  std::vector<TokenId> tokens;     // [m] of the nodes, those in `drawn` too
  std::vector<std::int32_t> path;  // accepted nodes, root first
  TokenId next = 0;                // the recovered token, or the bonus token after full acceptance
};

// A token and its probability.
struct TokenProb {
  TokenId id = 0;
  double prob = 0.0;
};

// What Backend::device() says of a backend whose memory is the host's.
inline constexpr std::int32_t kHostMemory = -1;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;  // "cpu", "ref"
  virtual std::int32_t threads() const = 0;
  // Whose memory it computes in: kHostMemory, or the number of a device. Backends with the same one
  // can read each other's memory; between others transfer.h copies.
  virtual std::int32_t device() const { return kHostMemory; }
  // What is left of that device's memory; of the host's nothing is said.
  virtual std::optional<std::size_t> free_bytes() const { return std::nullopt; }

  // How often the host has waited for it so far.
  virtual std::size_t waits() const { return 0; }

  // Memory. `source.data` of load_weight must outlive the weight: a backend may keep using the
  // mapping.
  virtual std::unique_ptr<Buffer> allocate(std::size_t bytes) const = 0;
  // A weight [N, K] loaded for kProducts serves embed_rows as well; one for kLookup nothing else.
  virtual std::unique_ptr<Weight> load_weight(const TensorView& source, WeightUse use) const = 0;
  virtual std::unique_ptr<Workspace> make_workspace() const = 0;
  // At once, into memory that no operation still has to do with.
  virtual void upload(void* destination, const void* host_source, std::size_t bytes) const = 0;
  // The same as an operation of the workspace: in its order, without waiting for what came before.
  virtual void upload_in_order(Workspace& ws, void* destination, const void* host_source,
                               std::size_t bytes) const {
    (void)ws;
    upload(destination, host_source, bytes);
  }
  virtual void download(Workspace& workspace, void* host_destination, const void* source,
                        std::size_t bytes) const = 0;  // waits for the stream

  // What `later` is given from now on takes effect after all that `earlier` was given so far,
  // without the host waiting. Both are this backend's.
  virtual void order(Workspace& earlier, Workspace& later) const {
    (void)earlier;
    (void)later;
  }

  // Before the operations that take `pass`, and again when anything of it has changed.
  virtual void begin_pass(Workspace& ws, const Pass& pass) const {
    (void)ws;
    (void)pass;
  }
  // Calls body, which gives `ws` operations and returns whether it gave all of them. What it gives
  // must follow from `key` but for what begin_pass was told and what lies in the backend's memory:
  // given an equal key again, a device may repeat what it recorded instead of calling body.
  virtual bool run_recorded(Workspace& ws, std::span<const std::int64_t> key,
                            const std::function<bool()>& body) const {
    (void)ws;
    (void)key;
    return body();
  }

  // out[i, :] = row tokens[i] of table [V, E], dequantised. out [M, E]
  virtual void embed_rows(Workspace& ws, const Pass& pass, const Weight& table,
                          float* out) const = 0;

  // out[i, k] = x[i, k] / sqrt(mean_k(x[i, k]^2) + eps) * gain[k]. x, out [M, K], may be the same
  virtual void rms_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                        const float* gain, float eps, float* out) const = 0;

  // out[i, k] = (x[i, k] - mean) / sqrt(mean_k((x[i, k] - mean)^2) + eps) * gain[k] + bias[k].
  // x, out [M, K], may be the same; bias may be null
  virtual void layer_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                          const float* gain, const float* bias, float eps, float* out) const = 0;

  // out = x W^T. x [M, K], W [N, K], out [M, N]
  virtual void matmul(Workspace& ws, std::int32_t rows, const float* x, const Weight& weight,
                      float* out) const = 0;

  // q, k, v = x W^T + bias; q and k normed and rotated; k and v written to the cache. x [M, E],
  // q_out [M, H, D]
  virtual void qkv_rope_store(Workspace& ws, const Pass& pass, std::int32_t layer, const float* x,
                              const QkvWeights& weights, const AttentionShape& shape,
                              float* q_out) const = 0;

  // Softmax attention of each row over its cached prefix, ancestors and itself (all in the cache by
  // now) as far as the window reaches, in chunks of logical positions from 0. q, out [M, H, D]
  virtual void attention(Workspace& ws, const Pass& pass, std::int32_t layer, const float* q,
                         const AttentionShape& shape, float* out) const = 0;

  // out = activation(x gate^T + gate bias, x up^T + up bias) down^T + down bias. x, out [M, E]
  virtual void gated_mlp(Workspace& ws, std::int32_t rows, const float* x,
                         const MlpWeights& weights, float* out) const = 0;

  // out[i] = sum over the experts e that row i goes to, by ascending id, of weight[i, e] *
  // mlp_e(x[i]): a fused multiply-add each, from 0. x, out [M, E]
  virtual void expert_mlp(Workspace& ws, std::int32_t rows, const float* x,
                          const ExpertWeights& weights, float* out) const = 0;

  // x += y. [count]
  virtual void add(Workspace& ws, std::int64_t count, float* x, const float* y) const = 0;

  // x[i, k] += bias[k]. x [M, K], bias [K]
  virtual void add_bias(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                        const float* bias) const = 0;

  // x *= factor. [count]
  virtual void scale(Workspace& ws, std::int64_t count, float* x, float factor) const = 0;

  // x[i, k] *= factors[i]. x [M, K], factors [M]
  virtual void scale_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                          const float* factors) const = 0;

  // x = cap * tanh(x / cap). [count]
  virtual void soft_cap(Workspace& ws, std::int64_t count, float* x, float cap) const = 0;

  // x[i, k] += y[i, k] / (1 + exp(-gate[i])). x, y [M, K], gate [M]
  virtual void add_gated(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                         const float* y, const float* gate) const = 0;

  // out[i * out_stride + k] = x[i * x_stride + k]. x [M, x_stride], out [M, out_stride], k in [0,
  // K)
  virtual void copy_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                         std::int64_t x_stride, float* out, std::int64_t out_stride) const = 0;

  // x[i, k] += silu(y[i, k] + bias[k]). x, y [M, K], bias [K]
  virtual void add_silu(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                        const float* y, const float* bias) const = 0;

  // out[ids[i]] = logits[i], -infinity elsewhere. logits [count], out [vocab]; ids [count], in [0,
  // vocab), backend memory
  virtual void scatter_logits(Workspace& ws, std::int32_t count, const float* logits,
                              const TokenId* ids, std::int32_t vocab, float* out) const = 0;

  // In every layer and head: cache row base + i = old cache row base + rows[i], rows ascending.
  // [count] host
  virtual void keep_rows(Workspace& ws, const KvCacheView& cache, std::int32_t base,
                         const std::int32_t* rows, std::int32_t count) const = 0;

  // out [vocab] = logits [>= vocab] with the penalties and the bias of `draw` (penalised_logit);
  // `counts`: the tokens of the text that this row follows.
  virtual void adjust_logits(Workspace& ws, const float* logits, const DrawParams& draw,
                             const TokenCounts& counts, float* out) const = 0;

  // The filtered distribution of one row of logits [>= vocab]: writes weight_out [vocab], returns
  // the total mass. mask_bits [ceil(vocab / 32)] host, or null. At temperature 0: weight 1 for the
  // argmax.
  virtual std::uint64_t distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                                     const FilterParams& filter, const std::uint32_t* mask_bits,
                                     float* weight_out) const = 0;

  // A token drawn from `dist` by race_draw (sampling_rule.h).
  virtual TokenId draw(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                       std::uint64_t seed, std::uint64_t position, RngPurpose purpose) const = 0;

  // distribution() without a mask, and draw() from it, left in `out`, backend memory: nothing that
  // the host would have to wait for.
  virtual void filter_and_draw(Workspace& ws, const float* logits, std::int32_t vocab,
                               const FilterParams& filter, float* weight_out, std::uint64_t seed,
                               std::uint64_t position, RngPurpose purpose, DrawnToken* out) const {
    out->total = distribution(ws, logits, vocab, filter, nullptr, weight_out);
    out->token = draw(ws, {weight_out, out->total}, vocab, seed, position, purpose);
  }

  // Log-softmax of one row of raw logits [>= vocab]: returns that of `token` and fills in the
  // `count`
  // <= vocab likeliest tokens, ties to the lowest id. top [count] host
  virtual float log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab,
                                  TokenId token, std::int32_t count, TokenLogprob* top) const = 0;

  // The `count` likeliest tokens of `dist`, weight [vocab]: likeliest first, ties by the lower id;
  // fewer where fewer have a mass.
  virtual std::vector<TokenProb> top_tokens(Workspace& ws, const DistributionView& dist,
                                            std::int32_t vocab, std::int32_t count) const = 0;

  // distribution() without a mask, and its `count` likeliest tokens, left in `out` [count], backend
  // memory: nothing that the host would have to wait for. Where fewer have a mass, the ids of the
  // others are below 0.
  virtual void rank_tokens(Workspace& ws, const float* logits, std::int32_t vocab,
                           const FilterParams& filter, std::int32_t count, float* weight_out,
                           DrawnToken* out) const;

  // The fused verify-and-accept step; see verify.h for the walk that host backends share.
  virtual Verdict verify(Workspace& ws, const VerifyInput& input) const = 0;
};

// Makes a backend. name: "cpu" or "ref"; threads <= 0: one per physical core.
// Throws BackendUnavailableError for a name that this build does not have.
std::shared_ptr<const Backend> make_backend(const std::string& name, std::int32_t threads);

}  // namespace specdec
