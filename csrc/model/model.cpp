#include "model/model.h"

#include <string_view>

#include "core/dequantize.h"
#include "core/error.h"
#include "core/printable.h"
#include "model/tensor_plan.h"

namespace specdec {

// Turns the tensors of a file, whose shapes are checked by now, into weights.
class ModelLoader {
 public:
  ModelLoader(Model& model, const LoadProgress& progress) : model_(model), progress_(progress) {
    for (const TensorInfo& info : file().tensors()) total_bytes_ += info.bytes;
  }

  void load() {
    const ModelConfig& config = model_.config_;
    model_.rope_ = RopeTable(config.rope, frequency_factors());
    const bool tied = file().find_tensor("output.weight") == nullptr;
    model_.token_embedding_ =
        matrix("token_embd.weight", tied ? WeightUse::kProducts : WeightUse::kLookup);
    for (std::int32_t i = 0; i < config.layers; ++i) model_.layers_.push_back(load_layer(i));
    model_.output_norm_ = vector("output_norm.weight");
    model_.output_ = tied ? model_.token_embedding_ : matrix("output.weight");
  }

 private:
  const GgufFile& file() const { return *model_.file_; }

  void report(std::size_t bytes) {
    loaded_bytes_ += bytes;
    if (progress_) {
      progress_(static_cast<double>(loaded_bytes_) / static_cast<double>(total_bytes_));
    }
  }

  std::unique_ptr<Weight> matrix(const std::string& name, WeightUse use = WeightUse::kProducts) {
    const TensorView view = file().view(name);
    auto weight = model_.backend_->load_weight(view, use);
    report(view.bytes);
    return weight;
  }

  std::vector<float> floats(const std::string& name) {
    const TensorView view = file().view(name);
    std::vector<float> values(view.shape[0]);
    dequantize_row(view.dtype, view.data, values.data(), values.size());
    report(view.bytes);
    return values;
  }

  std::unique_ptr<Buffer> vector(const std::string& name) {
    const std::vector<float> values = floats(name);
    const std::size_t bytes = values.size() * sizeof(float);
    auto buffer = model_.backend_->allocate(bytes);
    model_.backend_->upload(buffer->data(), values.data(), bytes);
    return buffer;
  }

  // Llama 3 scaling comes as a tensor of frequency divisors.
  std::vector<float> frequency_factors() {
    const std::string name = "rope_freqs.weight";
    if (file().find_tensor(name) == nullptr) return {};
    std::vector<float> factors = floats(name);
    for (const float factor : factors) {
      if (!(factor > 0.0f)) {
        throw GgufError(str("tensor ", name, " holds ", factor, "; factors must be positive"));
      }
    }
    return factors;
  }

  LayerWeights load_layer(std::int32_t index) {
    const std::string prefix = str("blk.", index, ".");
    LayerWeights layer;
    layer.attn_norm = vector(prefix + "attn_norm.weight");
    layer.attn_q = matrix(prefix + "attn_q.weight");
    layer.attn_k = matrix(prefix + "attn_k.weight");
    layer.attn_v = matrix(prefix + "attn_v.weight");
    layer.attn_output = matrix(prefix + "attn_output.weight");
    layer.ffn_norm = vector(prefix + "ffn_norm.weight");
    layer.ffn_gate = matrix(prefix + "ffn_gate.weight");
    layer.ffn_up = matrix(prefix + "ffn_up.weight");
    layer.ffn_down = matrix(prefix + "ffn_down.weight");
    return layer;
  }

  Model& model_;
  const LoadProgress& progress_;
  std::size_t loaded_bytes_ = 0, total_bytes_ = 0;
};

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
  for (const LayerWeights& layer : layers_) {
    for (const auto* weight : {&layer.attn_q, &layer.attn_k, &layer.attn_v, &layer.attn_output,
                               &layer.ffn_gate, &layer.ffn_up, &layer.ffn_down}) {
      sum += (*weight)->bytes();
    }
    sum += layer.attn_norm->bytes() + layer.ffn_norm->bytes();
  }
  return sum;
}

}  // namespace specdec
