// A backend that delegates to another and adds up, per operation, the wall time, the calls, the
// bytes of weights or cache that were read, and the multiply-adds with weights. Nothing is
// measured until start(). For backends that compute before they return, as those of the host do.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace specdec {

// One kind of operation on weights of the same types.
struct OpProfile {
  std::string op;     // "embed", "norm", "qkv", "attention", "attn_output", "mlp", "head", ...
  std::string types;  // of the weights: "Q4_K", "Q4_K+Q6_K"; "" where there are none
  std::int64_t calls = 0;
  double seconds = 0.0;
  double bytes = 0.0;          // read: weights as the file stores them, cache as it lies
  double multiply_adds = 0.0;  // with weights
};

class ProfilingBackend final : public Backend {
 public:
  explicit ProfilingBackend(std::shared_ptr<const Backend> inner) : inner_(std::move(inner)) {}

  // Forgets what was measured and begins; from any thread, between operations.
  void start() const;
  void stop() const;
  // In the order of the first call.
  std::vector<OpProfile> results() const;
  // What a product with this weight is called; "matmul" otherwise.
  void name_weight(const Weight& weight, std::string name) const;

  std::string name() const override { return inner_->name(); }
  std::int32_t threads() const override { return inner_->threads(); }
  std::int32_t device() const override { return inner_->device(); }
  std::optional<std::size_t> free_bytes() const override { return inner_->free_bytes(); }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) const override;
  std::unique_ptr<Weight> load_weight(const TensorView& source, WeightUse use) const override;
  std::unique_ptr<Workspace> make_workspace() const override;
  void upload(void* destination, const void* host_source, std::size_t bytes) const override;
  void upload_in_order(Workspace& ws, void* destination, const void* host_source,
                       std::size_t bytes) const override {
    inner_->upload_in_order(ws, destination, host_source, bytes);
  }
  void download(Workspace& ws, void* host_destination, const void* source,
                std::size_t bytes) const override;
  void order(Workspace& earlier, Workspace& later) const override { inner_->order(earlier, later); }
  void begin_pass(Workspace& ws, const Pass& pass) const override { inner_->begin_pass(ws, pass); }

  void embed_rows(Workspace& ws, const Pass& pass, const Weight& table, float* out) const override;
  void rms_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                const float* gain, float eps, float* out) const override;
  void layer_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                  const float* gain, const float* bias, float eps, float* out) const override;
  void matmul(Workspace& ws, std::int32_t rows, const float* x, const Weight& weight,
              float* out) const override;
  void qkv_rope_store(Workspace& ws, const Pass& pass, std::int32_t layer, const float* x,
                      const QkvWeights& weights, const AttentionShape& shape,
                      float* q_out) const override;
  void attention(Workspace& ws, const Pass& pass, std::int32_t layer, const float* q,
                 const AttentionShape& shape, float* out) const override;
  void gated_mlp(Workspace& ws, std::int32_t rows, const float* x, const MlpWeights& weights,
                 float* out) const override;
  void expert_mlp(Workspace& ws, std::int32_t rows, const float* x, const ExpertWeights& weights,
                  float* out) const override;
  void add(Workspace& ws, std::int64_t count, float* x, const float* y) const override;
  void add_bias(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                const float* bias) const override;
  void scale(Workspace& ws, std::int64_t count, float* x, float factor) const override;
  void scale_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                  const float* factors) const override;
  void soft_cap(Workspace& ws, std::int64_t count, float* x, float cap) const override;
  void add_gated(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x, const float* y,
                 const float* gate) const override;
  void copy_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                 std::int64_t x_stride, float* out, std::int64_t out_stride) const override;
  void add_silu(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x, const float* y,
                const float* bias) const override;
  void scatter_logits(Workspace& ws, std::int32_t count, const float* logits, const TokenId* ids,
                      std::int32_t vocab, float* out) const override;
  void keep_rows(Workspace& ws, const KvCacheView& cache, std::int32_t base,
                 const std::int32_t* rows, std::int32_t count) const override;
  void adjust_logits(Workspace& ws, const float* logits, const DrawParams& draw,
                     const TokenCounts& counts, float* out) const override;
  std::uint64_t distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                             const FilterParams& filter, const std::uint32_t* mask_bits,
                             float* weight_out) const override;
  TokenId draw(Workspace& ws, const DistributionView& dist, std::int32_t vocab, std::uint64_t seed,
               std::uint64_t position, RngPurpose purpose) const override;
  float log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab, TokenId token,
                          std::int32_t count, TokenLogprob* top) const override;
  std::vector<TokenProb> top_tokens(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                                    std::int32_t count) const override;
  Verdict verify(Workspace& ws, const VerifyInput& input) const override;

 private:
  // Runs one operation; `describe` fills in what it reads and does, only while measuring.
  template <typename Describe, typename Run>
  void measured(const char* op, const Describe& describe, const Run& run) const;
  void record(const OpProfile& once) const;
  std::string weight_name(const Weight& weight) const;

  std::shared_ptr<const Backend> inner_;
  // Measuring changes nothing that a backend promises, hence mutable.
  mutable std::mutex mutex_;
  mutable bool running_ = false;
  mutable std::vector<OpProfile> ops_;
  mutable std::vector<std::pair<const Weight*, std::string>> names_;
};

// Bytes of a weight as its file stores it.
double stored_bytes(const Weight& weight);

}  // namespace specdec
