// The mutable side of a model for one sequence: cache, activations, and the tokens that its cache
// rows were computed from. The engine's session owns one for the target; a draft model owns one
// too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/kv_cache.h"
#include "model/model.h"
#include "model/transformer.h"

namespace specdec {

class ModelState {
 public:
  // n_ctx: positions of the cache.
  ModelState(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type)
      : model_(std::move(model)),
        cache_(model_->spans(), kv_type, model_->config().kv_heads, model_->config().head_dim,
               n_ctx) {
    activations_.reserve(model_->spans().size());
    for (const LayerSpan& span : model_->spans()) activations_.emplace_back(*span.backend);
  }

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const Backend& backend() const { return model_->backend(); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  // Of the span that the head is on, as the workspace.
  Activations& activations() { return activations_.back(); }
  const Activations& activations() const { return activations_.back(); }
  Workspace& workspace() { return activations().workspace(); }
  // Of all spans; of one.
  std::size_t scratch_bytes() const {
    std::size_t sum = 0;
    for (const Activations& one : activations_) sum += one.bytes();
    return sum;
  }
  std::size_t scratch_bytes(std::size_t span) const { return activations_[span].bytes(); }
  std::int32_t n_ctx() const { return cache_.capacity(); }

  // One pass over `tokens` behind the cached rows; see forward() in transformer.h. drawn: of
  // tokens below 0, see backend.h.
  bool run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
           LogitRows logit_rows, const CancelFlag* cancel, const PassOptions& options = {},
           const DrawnToken* drawn = nullptr) {
    const PassInput input{&cache_, tokens, parents, drawn};
    return forward(*model_, activations_, {&input, 1}, logit_rows, cancel, options);
  }

  // Of all spans.
  RecordingCounts recordings() const {
    RecordingCounts sum;
    for (const Activations& one : activations_) {
      sum.recorded += one.workspace().recordings().recorded;
      sum.repeated += one.workspace().recordings().repeated;
    }
    return sum;
  }

  // See KvCache::keep_path.
  void keep_path(std::int32_t base, std::span<const std::int32_t> rows) {
    std::vector<Workspace*> workspaces;
    for (Activations& one : activations_) workspaces.push_back(&one.workspace());
    cache_.keep_path(workspaces, base, rows);
  }

  // Logits of the i-th row that had them in the last pass, [V], backend memory.
  const float* logits(std::int32_t i) {
    return activations().logits->f32() +
           static_cast<std::size_t>(i) * static_cast<std::size_t>(model_->config().vocab_rows);
  }

 private:
  std::shared_ptr<const Model> model_;
  KvCache cache_;
  std::vector<Activations> activations_;  // one for each span
};

}  // namespace specdec
