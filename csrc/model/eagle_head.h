// An EAGLE-3 head (arXiv 2503.01840): one transformer layer that guesses the next token from the
// token before it and from hidden states of the target, fused by a matrix. The file has the form
// that llama.cpp's converter writes (architecture `eagle3`).
//
// Row j stands for the target's position j: it reads the embedding of token j + 1 and a fused state
// of position j, and guesses token j + 2. Where the target has not been yet, the layer's own output
// of the row before takes the place of the fused state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "gguf/reader.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/transformer.h"

namespace specdec {

struct EagleConfig {
  ModelConfig layer;                 // of the one layer; vocab_rows: of its output matrix, Vd
  std::vector<std::int32_t> states;  // hidden states of the target, see PassOptions::capture
  std::int32_t target_width = 0;     // Et
  bool norm_before_residual = false;
};

// Throws GgufError naming the key or tensor at fault. `target`: what the head leaves to it.
EagleConfig read_eagle_config(const GgufFile& file, const ModelConfig& target);

class EagleHead {
 public:
  // Throws GgufError for a bad file, IncompatibleModelsError for one that does not fit the target.
  static std::shared_ptr<const EagleHead> load(const std::string& path,
                                               std::shared_ptr<const Model> target,
                                               const LoadProgress& progress);

  const EagleConfig& config() const { return config_; }
  const Model& target() const { return *target_; }
  const Backend& backend() const { return target_->backend(); }
  // The target's id of each draft id [Vd]; empty: they are the same.
  const std::vector<TokenId>& target_ids() const { return target_ids_; }
  // The same in the backend's memory; null where they are the same.
  const TokenId* target_ids_in_place() const {
    return ids_in_place_ ? static_cast<const TokenId*>(ids_in_place_->data()) : nullptr;
  }
  std::size_t weight_bytes() const;

 private:
  EagleHead() = default;
  friend class EagleState;

  const Weight& embedding() const { return embedding_ ? *embedding_ : target_->token_embedding(); }
  const Weight& output() const { return output_ ? *output_ : target_->output(); }

  std::shared_ptr<const GgufFile> file_;  // keeps the mapping alive for weights that alias it
  std::shared_ptr<const Model> target_;
  EagleConfig config_;
  ModelRope rope_;
  std::unique_ptr<Weight> fuse_;          // [E, states * Et]
  std::unique_ptr<Buffer> hidden_norm_;   // [E]; the embedding's is layer_.attn_norm
  LayerWeights layer_;                    // projections [*, 2 E]
  Norm output_norm_;                      // [E]
  std::unique_ptr<Weight> output_;        // [Vd, E], or null
  std::unique_ptr<Weight> embedding_;     // [V, E], or null
  std::vector<TokenId> target_ids_;       // [Vd]
  std::unique_ptr<Buffer> ids_in_place_;  // [Vd], or null
};

// The mutable side: cache and activations of one sequence, and the forward pass.
class EagleState {
 public:
  EagleState(std::shared_ptr<const EagleHead> head, std::int32_t n_ctx, DType kv_type);

  const EagleHead& head() const { return *head_; }
  const Backend& backend() const { return head_->backend(); }
  KvCache& cache() { return cache_; }
  const KvCache& cache() const { return cache_; }
  Workspace& workspace() { return activations_.workspace(); }
  std::size_t bytes() const;

  // One pass over `tokens` (ids of the target) behind the cached rows. fused [rows, E]: their
  // hidden states, backend memory that is not this object's. Leaves the layer's outputs in
  // hidden(), and the logits of the last `logit_rows` rows. False, with nothing appended, if
  // cancelled. drawn: of tokens below 0, see backend.h.
  bool run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
           const float* fused, std::int32_t logit_rows, const CancelFlag* cancel,
           const DrawnToken* drawn = nullptr);

  // out [rows, E] = fused states of the target [rows, states * Et], all backend memory
  void fuse(std::int32_t rows, const float* states, float* out);

  // The output of row i of the last pass, before the output norm: [E]
  const float* hidden(std::int32_t i);
  // The i-th row of logits of the last pass, [Vd].
  const float* logits(std::int32_t i);

 private:
  void run_layer(const Pass& pass, const float* fused, std::int32_t logit_rows);

  std::shared_ptr<const EagleHead> head_;
  KvCache cache_;  // one layer
  Activations activations_;
  std::unique_ptr<Buffer> joined_;  // [M, 2 E]: the normed embedding, then the normed hidden state
};

}  // namespace specdec
