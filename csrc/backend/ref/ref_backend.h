// The readable specification of every operation, and the oracle of the tests: naive loops, double
// accumulation, no threads, weights decoded as they are needed, activations never quantised.
// Only operation results are rounded to float. Slow on purpose; never optimise it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/verify.h"

namespace specdec {

class RefWorkspace final : public Workspace {
 public:
  std::size_t bytes() const override { return verify.bytes(); }

  VerifyScratch verify;
};

class RefBackend final : public Backend {
 public:
  std::string name() const override { return "ref"; }
  std::int32_t threads() const override { return 1; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) const override;
  std::unique_ptr<Weight> load_weight(const TensorView& source, WeightUse use) const override;
  std::unique_ptr<Workspace> make_workspace() const override;
  void upload(void* destination, const void* host_source, std::size_t bytes) const override;
  void download(Workspace& ws, void* host_destination, const void* source,
                std::size_t bytes) const override;

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
};

}  // namespace specdec
