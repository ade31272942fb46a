#include "model/model.h"

#include "core/error.h"
#include "model/tensor_loader.h"
#include "model/tensor_plan.h"

namespace specdec {

class ModelLoader {
 public:
  ModelLoader(Model& model, const LoadProgress& progress)
      : model_(model), tensors_(*model.file_, *model.backend_, progress) {}

  void load() {
    const ModelConfig& config = model_.config_;
    model_.rope_ = RopeTable(config.rope, tensors_.frequency_factors());
    const bool tied = !tensors_.has("output.weight");
    model_.token_embedding_ =
        tensors_.matrix("token_embd.weight", tied ? WeightUse::kProducts : WeightUse::kLookup);
    for (std::int32_t i = 0; i < config.layers; ++i) {
      model_.layers_.push_back(load_layer(tensors_, i));
    }
    model_.output_norm_ = tensors_.vector("output_norm.weight");
    model_.output_ = tied ? model_.token_embedding_ : tensors_.matrix("output.weight");
  }

 private:
  Model& model_;
  TensorLoader tensors_;
};

LayerWeights load_layer(TensorLoader& tensors, std::int32_t index) {
  const std::string prefix = str("blk.", index, ".");
  LayerWeights layer;
  layer.attn_norm = tensors.vector(prefix + "attn_norm.weight");
  layer.attn_q = tensors.matrix(prefix + "attn_q.weight");
  layer.attn_k = tensors.matrix(prefix + "attn_k.weight");
  layer.attn_v = tensors.matrix(prefix + "attn_v.weight");
  layer.attn_output = tensors.matrix(prefix + "attn_output.weight");
  layer.ffn_norm = tensors.vector(prefix + "ffn_norm.weight");
  layer.ffn_gate = tensors.matrix(prefix + "ffn_gate.weight");
  layer.ffn_up = tensors.matrix(prefix + "ffn_up.weight");
  layer.ffn_down = tensors.matrix(prefix + "ffn_down.weight");
  return layer;
}

std::size_t LayerWeights::bytes() const {
  std::size_t sum = attn_norm->bytes() + ffn_norm->bytes();
  for (const auto* weight :
       {&attn_q, &attn_k, &attn_v, &attn_output, &ffn_gate, &ffn_up, &ffn_down}) {
    sum += (*weight)->bytes();
  }
  return sum;
}

std::shared_ptr<const Model> Model::load(const std::string& path,
                                         std::shared_ptr<const Backend> backend,
                                         const LoadProgress& progress) {
  std::shared_ptr<Model> model(new Model());
  model->backend_ = std::move(backend);
  model->file_ = GgufFile::open(path);
  model->config_ = read_config(*model->file_);
  check_tensors(model->config_, *model->file_);
  ModelLoader(*model, progress).load();
  return model;
}

std::size_t Model::weight_bytes() const {
  std::size_t sum = token_embedding_->bytes() + output_norm_->bytes();
  if (output_ != token_embedding_) sum += output_->bytes();
  for (const LayerWeights& layer : layers_) sum += layer.bytes();
  return sum;
}

}  // namespace specdec
