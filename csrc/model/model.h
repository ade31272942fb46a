// A loaded model: configuration and weights, immutable and shared. Everything that changes while
// generating lives in ModelState (model_state.h); several states may share one Model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/tensor_loader.h"

namespace specdec {

struct LayerWeights {
  std::unique_ptr<Buffer> attn_norm;    // [E]
  std::unique_ptr<Weight> attn_q;       // [H * D, E]
  std::unique_ptr<Weight> attn_k;       // [Hkv * D, E]
  std::unique_ptr<Weight> attn_v;       // [Hkv * D, E]
  std::unique_ptr<Weight> attn_output;  // [E, H * D]
  std::unique_ptr<Buffer> ffn_norm;     // [E]
  std::unique_ptr<Weight> ffn_gate;     // [F, E]
  std::unique_ptr<Weight> ffn_up;       // [F, E]
  std::unique_ptr<Weight> ffn_down;     // [E, F]

  std::size_t bytes() const;
};

// The tensors `blk.INDEX.*`.
LayerWeights load_layer(TensorLoader& tensors, std::int32_t index);

class Model {
 public:
  // Throws GgufError naming the key or tensor at fault.
  static std::shared_ptr<const Model> load(const std::string& path,
                                           std::shared_ptr<const Backend> backend,
                                           const LoadProgress& progress);

  const Backend& backend() const { return *backend_; }
  const std::shared_ptr<const GgufFile>& file() const { return file_; }
  const ModelConfig& config() const { return config_; }
  const RopeTable& rope() const { return rope_; }
  const std::vector<LayerWeights>& layers() const { return layers_; }  // [L]
  const Weight& token_embedding() const { return *token_embedding_; }  // [V, E]
  const Weight& output() const { return *output_; }  // [V, E]; the embedding where the head is tied
  Buffer& output_norm() const { return *output_norm_; }  // [E], read only
  std::size_t weight_bytes()
      const;  // memory of the weights: the file's own bytes where not repacked

 private:
  Model() = default;

  std::shared_ptr<const Backend> backend_;
  std::shared_ptr<const GgufFile> file_;  // keeps the mapping alive for weights that alias it
  ModelConfig config_;
  RopeTable rope_;
  std::vector<LayerWeights> layers_;
  std::shared_ptr<const Weight> token_embedding_, output_;
  std::unique_ptr<Buffer> output_norm_;
  friend class ModelLoader;
};

}  // namespace specdec
