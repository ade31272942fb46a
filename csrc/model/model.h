// A loaded model: configuration and weights, immutable and shared. Everything that changes while
// generating lives in ModelState (model_state.h); several states may share one Model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "model/placement.h"
#include "model/rope.h"
#include "model/tensor_loader.h"

namespace specdec {

// A norm's vectors.
struct Norm {
  std::unique_ptr<Buffer> gain;  // [E]
  std::unique_ptr<Buffer> bias;  // [E], or null

  explicit operator bool() const { return gain != nullptr; }
  std::size_t bytes() const;
};

// A feed-forward block, or the stacks [X, ...] of a mixture's.
struct Mlp {
  std::unique_ptr<Weight> gate;                           // [F, E], or null
  std::unique_ptr<Weight> up;                             // [F, E]
  std::unique_ptr<Weight> down;                           // [E, F]
  std::unique_ptr<Buffer> gate_bias, up_bias, down_bias;  // [F], [F], [E], or null

  explicit operator bool() const { return up != nullptr; }
  MlpWeights weights(Activation activation) const;
  std::size_t bytes() const;
};

// What a model does not have is null.
struct LayerWeights {
  Norm attn_norm;                                  // before attention
  std::unique_ptr<Weight> attn_q;                  // [H * D, E]
  std::unique_ptr<Weight> attn_k;                  // [Hkv * D, E]
  std::unique_ptr<Weight> attn_v;                  // [Hkv * D, E]
  std::unique_ptr<Buffer> q_bias, k_bias, v_bias;  // [H * D], [Hkv * D]
  std::unique_ptr<Buffer> q_norm, k_norm;          // [D], or [H * D], [Hkv * D]
  std::unique_ptr<Buffer> sinks;                   // [H]
  std::unique_ptr<Weight> attn_output;             // [E, H * D]
  std::unique_ptr<Buffer> attn_output_bias;        // [E]
  Norm attn_post_norm;                             // after attention
  Norm ffn_norm, ffn_post_norm;                    // before and after the MLP
  Mlp mlp;                                         // or the mixture's stacks
  std::unique_ptr<Weight> router;                  // [X, E]
  std::unique_ptr<Buffer> router_bias;             // [X]
  std::unique_ptr<Weight> shared_gate;             // [1, E]
  Mlp shared;

  std::size_t bytes() const;
};

// The tensors `blk.INDEX.*`.
LayerWeights load_layer(TensorLoader& tensors, const ModelConfig& config, std::int32_t index);
Norm load_norm(TensorLoader& tensors, const std::string& name);

class Model {
 public:
  // Throws GgufError naming the key or tensor at fault.
  static std::shared_ptr<const Model> load(const std::string& path, const Placement& placement,
                                           const LoadProgress& progress);

  // All layers, in order; the head is on the last one's backend.
  const std::vector<LayerSpan>& spans() const { return spans_; }
  // That of the head: of the logits, and of hidden states that are kept.
  const Backend& backend() const { return *shared_backend(); }
  const std::shared_ptr<const Backend>& shared_backend() const { return spans_.back().backend; }
  const std::shared_ptr<const GgufFile>& file() const { return file_; }
  const ModelConfig& config() const { return config_; }
  const ModelRope& rope() const { return rope_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }  // [L]
  // [V, E], on the first layer's backend
  const Weight& token_embedding() const { return *token_embedding_; }
  const Weight& output() const { return *output_; }  // [V, E]; the embedding where the head is tied
  const Norm& output_norm() const { return output_norm_; }
  // The weights that a pass of one token multiplies by, and how often: `routed` ones, the stacks of
  // a mixture, as often as a token has experts.
  using ReadVisitor = std::function<void(const Weight& weight, double times, bool routed)>;
  void visit_reads(const ReadVisitor& visit) const;

  // Memory of the weights, the file's own bytes where not repacked: of all, of those of a span.
  std::size_t weight_bytes() const;
  std::size_t weight_bytes(std::size_t span) const;

 private:
  Model() = default;

  std::vector<LayerSpan> spans_;
  std::shared_ptr<const GgufFile> file_;  // keeps the mapping alive for weights that alias it
  ModelConfig config_;
  ModelRope rope_;
  std::vector<LayerWeights> layers_;
  std::shared_ptr<const Weight> token_embedding_, output_;
  Norm output_norm_;
  friend class ModelLoader;
};

}  // namespace specdec
