// The mutable side of a model for one sequence: cache, activations, and the tokens that its cache
// rows were computed from. The engine's session owns one for the target; a draft model owns one
// too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/kv_cache.h"
#include "model/model.h"
#include "model/transformer.h"

namespace specdec {

class ModelState {
 public:
  // n_ctx: positions of the cache.
  ModelState(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type)
      : model_(std::move(model)),
        cache_(model_->backend(), kv_type, model_->config().layers, model_->config().kv_heads,
               model_->config().head_dim, n_ctx),
        activations_(model_->backend()) {}

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const Backend& backend() const { return model_->backend(); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  Activations& activations() { return activations_; }
  const Activations& activations() const { return activations_; }
  Workspace& workspace() { return activations_.workspace(); }
  std::int32_t n_ctx() const { return cache_.capacity(); }

  // One pass over `tokens` behind the cached rows; see forward() in transformer.h.
  bool run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
           LogitRows logit_rows, const CancelFlag* cancel, const PassOptions& options = {}) {
    const PassInput input{&cache_, tokens, parents};
    return forward(*model_, activations_, {&input, 1}, logit_rows, cancel, options);
  }

  // Logits of the i-th row that had them in the last pass, [V], backend memory.
  const float* logits(std::int32_t i) {
    return activations_.logits->f32() +
           static_cast<std::size_t>(i) * static_cast<std::size_t>(model_->config().vocab_rows);
  }

 private:
  std::shared_ptr<const Model> model_;
  KvCache cache_;
  Activations activations_;
};

}  // namespace specdec
