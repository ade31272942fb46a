#include "model/model.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "core/dequantize.h"
#include "core/error.h"
#include "core/printable.h"

namespace specdec {

// Turns the tensors of a file into weights, checking every shape, and keeps count of which were used.
class ModelLoader {
 public:
  ModelLoader(Model& model, const LoadProgress& progress) : model_(model), progress_(progress) {
    for (const TensorInfo& info : file().tensors()) total_bytes_ += info.bytes;
  }

  void load() {
    const ModelConfig& config = model_.config_;
    load_embedding();
    model_.rope_ = RopeTable(config.rope, frequency_factors());
    for (std::int32_t i = 0; i < config.layers; ++i) model_.layers_.push_back(load_layer(i));
    model_.output_norm_ = vector("output_norm.weight", config.width);
    load_output();
    refuse_leftovers();
  }

 private:
  const GgufFile& file() const { return *model_.file_; }

  TensorView take(const std::string& name) {
    used_.insert(name);
    return file().view(name);
  }

  [[noreturn]] void wrong_shape(const TensorView& view, const std::string& expected) const {
    std::string found = "[";
    for (std::size_t i = 0; i < view.shape.size(); ++i) {
      found += (i == 0 ? "" : ", ") + std::to_string(view.shape[i]);
    }
    throw GgufError(str("tensor ", quoted(view.name), " has shape ", found, "], expected ",
                        expected, " from the metadata: the file is damaged or not a plain ",
                        model_.config_.architecture, " model"));
  }

  void report(std::size_t bytes) {
    loaded_bytes_ += bytes;
    if (progress_) {
      progress_(total_bytes_ == 0 ? 1.0
                                  : static_cast<double>(loaded_bytes_) /
                                        static_cast<double>(total_bytes_));
    }
  }

  // A matrix [rows, cols] in the backend's layout.
  std::unique_ptr<Weight> matrix(const std::string& name, std::int32_t rows, std::int32_t cols) {
    const TensorView view = take(name);
    if (view.shape.size() != 2 || view.shape[0] != static_cast<std::size_t>(rows) ||
        view.shape[1] != static_cast<std::size_t>(cols)) {
      wrong_shape(view, str("[", rows, ", ", cols, "]"));
    }
    auto weight = model_.backend_->load_weight(view);
    report(view.bytes);
    return weight;
  }

  std::vector<float> floats(const TensorView& view, std::int32_t count) {
    if (view.shape.size() != 1 || view.shape[0] != static_cast<std::size_t>(count)) {
      wrong_shape(view, str("[", count, "]"));
    }
    std::vector<float> values(view.shape[0]);
    dequantize_row(view.dtype, view.data, values.data(), values.size());
    return values;
  }

  std::unique_ptr<Buffer> vector(const std::string& name, std::int32_t count) {
    const TensorView view = take(name);
    const std::vector<float> values = floats(view, count);
    auto buffer = model_.backend_->allocate(values.size() * sizeof(float));
    model_.backend_->upload(buffer->data(), values.data(), values.size() * sizeof(float));
    report(view.bytes);
    return buffer;
  }

  // The table's rows set the width of the logits; ids beyond the token list are padding.
  void load_embedding() {
    ModelConfig& config = model_.config_;
    const TensorView view = take("token_embd.weight");
    if (view.shape.size() != 2 || view.shape[1] != static_cast<std::size_t>(config.width)) {
      wrong_shape(view, str("[vocabulary, ", config.width, "]"));
    }
    if (view.shape[0] < static_cast<std::size_t>(config.vocab)) {
      throw GgufError(str("tensor 'token_embd.weight' has ", view.shape[0], " rows for ",
                          config.vocab, " tokens: the file is damaged"));
    }
    config.vocab_rows = static_cast<std::int32_t>(view.shape[0]);
    model_.token_embedding_ = matrix("token_embd.weight", config.vocab_rows, config.width);
  }

  // A file without output.weight ties the head to the embedding.
  void load_output() {
    const ModelConfig& config = model_.config_;
    if (file().find_tensor("output.weight") == nullptr) {
      model_.output_ = model_.token_embedding_;
      return;
    }
    model_.output_ = matrix("output.weight", config.vocab_rows, config.width);
  }

  // Llama 3 scaling comes as a tensor of frequency divisors.
  std::vector<float> frequency_factors() {
    const std::string name = "rope_freqs.weight";
    if (file().find_tensor(name) == nullptr) return {};
    std::vector<float> factors = floats(take(name), model_.config_.rope.dims / 2);
    for (const float factor : factors) {
      if (!(factor > 0.0f)) {
        throw GgufError(str("tensor ", name, " holds ", factor, "; factors must be positive"));
      }
    }
    return factors;
  }

  LayerWeights load_layer(std::int32_t index) {
    const ModelConfig& config = model_.config_;
    const std::string prefix = str("blk.", index, ".");
    const std::int32_t query_width = config.heads * config.head_dim;
    const std::int32_t kv_width = config.kv_heads * config.head_dim;
    LayerWeights layer;
    layer.attn_norm = vector(prefix + "attn_norm.weight", config.width);
    layer.attn_q = matrix(prefix + "attn_q.weight", query_width, config.width);
    layer.attn_k = matrix(prefix + "attn_k.weight", kv_width, config.width);
    layer.attn_v = matrix(prefix + "attn_v.weight", kv_width, config.width);
    layer.attn_output = matrix(prefix + "attn_output.weight", config.width, query_width);
    layer.ffn_norm = vector(prefix + "ffn_norm.weight", config.width);
    layer.ffn_gate = matrix(prefix + "ffn_gate.weight", config.ffn_width, config.width);
    layer.ffn_up = matrix(prefix + "ffn_up.weight", config.ffn_width, config.width);
    layer.ffn_down = matrix(prefix + "ffn_down.weight", config.width, config.ffn_width);
    return layer;
  }

  // A tensor that the forward pass does not read (a bias, an expert) would make the result silently
  // wrong. Rotary frequencies that old converters stored are derived data.
  void refuse_leftovers() const {
    for (const TensorInfo& info : file().tensors()) {
      if (used_.contains(info.name) || info.name.ends_with(".rot_embd") ||
          info.name.ends_with("attn_rot_embd.weight")) {
        continue;
      }
      throw GgufError(str("tensor ", quoted(info.name), " is not part of the ",
                          model_.config_.architecture,
                          " architecture as supported here; ignoring it would give wrong results"));
    }
  }

  Model& model_;
  const LoadProgress& progress_;
  std::unordered_set<std::string> used_;
  std::size_t loaded_bytes_ = 0, total_bytes_ = 0;
};

std::shared_ptr<const Model> Model::load(const std::string& path,
                                         std::shared_ptr<const Backend> backend,
                                         const LoadProgress& progress) {
  std::shared_ptr<Model> model(new Model());
  model->backend_ = std::move(backend);
  model->file_ = GgufFile::open(path);
  model->config_ = read_config(*model->file_);
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
