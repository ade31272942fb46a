#include "model/model.h"

#include "core/error.h"
#include "model/tensor_loader.h"
#include "model/tensor_plan.h"

namespace specdec {

class ModelLoader {
 public:
  ModelLoader(Model& model, const LoadProgress& progress)
      : model_(model), tensors_(*model.file_, *model.spans_.front().backend, progress) {}

  void load() {
    const ModelConfig& config = model_.config_;
    model_.rope_ = ModelRope(config, tensors_.frequency_factors());
    const bool tied = !tensors_.has("output.weight");
    // A matrix that serves for both lies where the head is; elsewhere rows are only looked up.
    const bool shared = tied && model_.spans_.size() == 1;
    model_.token_embedding_ =
        tensors_.matrix("token_embd.weight", shared ? WeightUse::kProducts : WeightUse::kLookup);
    for (const LayerSpan& span : model_.spans_) {
      tensors_.load_on(*span.backend);
      for (std::int32_t i = span.first; i < span.end; ++i) {
        model_.layers_.push_back(load_layer(tensors_, config, i));
      }
    }
    model_.output_norm_ = load_norm(tensors_, "output_norm");
    const std::string output = tied ? "token_embd.weight" : "output.weight";
    model_.output_ = shared ? model_.token_embedding_ : tensors_.matrix(output);
  }

 private:
  Model& model_;
  TensorLoader tensors_;
};

namespace {

std::size_t bytes_of(const std::unique_ptr<Weight>& weight) { return weight ? weight->bytes() : 0; }
std::size_t bytes_of(const std::unique_ptr<Buffer>& buffer) { return buffer ? buffer->bytes() : 0; }

const float* data_of(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->f32() : nullptr;
}

// q, k and v: three matrices, or rows of one.
void load_projections(TensorLoader& tensors, const ModelConfig& config, const std::string& prefix,
                      LayerWeights& layer) {
  if (!config.fused_qkv) {
    layer.attn_q = tensors.matrix(prefix + "attn_q.weight");
    layer.attn_k = tensors.matrix(prefix + "attn_k.weight");
    layer.attn_v = tensors.matrix(prefix + "attn_v.weight");
    layer.q_bias = tensors.optional_vector(prefix + "attn_q.bias");
    layer.k_bias = tensors.optional_vector(prefix + "attn_k.bias");
    layer.v_bias = tensors.optional_vector(prefix + "attn_v.bias");
    return;
  }
  const auto dim = static_cast<std::size_t>(config.head_dim);
  const RowRange q{0, static_cast<std::size_t>(config.heads) * dim};
  const RowRange k{q.count, static_cast<std::size_t>(config.kv_heads) * dim};
  const RowRange v{k.first + k.count, k.count};
  layer.attn_q = tensors.rows(prefix + "attn_qkv.weight", q);
  layer.attn_k = tensors.rows(prefix + "attn_qkv.weight", k);
  layer.attn_v = tensors.rows(prefix + "attn_qkv.weight", v);
  if (!config.qkv_bias) return;
  layer.q_bias = tensors.elements(prefix + "attn_qkv.bias", q);
  layer.k_bias = tensors.elements(prefix + "attn_qkv.bias", k);
  layer.v_bias = tensors.elements(prefix + "attn_qkv.bias", v);
}

// kind: "" or "_exps" or "_shexp"
Mlp load_mlp(TensorLoader& tensors, const ModelConfig& config, const std::string& prefix,
             const std::string& kind) {
  const auto name = [&](const char* part) { return prefix + "ffn_" + part + kind; };
  Mlp mlp;
  if (kind.empty() && config.traits->fused_up) {
    const auto ffn = static_cast<std::size_t>(config.ffn_width);
    mlp.gate = tensors.rows(name("up") + ".weight", {0, ffn});
    mlp.up = tensors.rows(name("up") + ".weight", {ffn, ffn});
  } else {
    if (config.traits->gated) mlp.gate = tensors.matrix(name("gate") + ".weight");
    mlp.up = tensors.matrix(name("up") + ".weight");
  }
  mlp.down = tensors.matrix(name("down") + ".weight");
  mlp.gate_bias = tensors.optional_vector(name("gate") + ".bias");
  mlp.up_bias = tensors.optional_vector(name("up") + ".bias");
  mlp.down_bias = tensors.optional_vector(name("down") + ".bias");
  return mlp;
}

}  // namespace

Norm load_norm(TensorLoader& tensors, const std::string& name) {
  return {tensors.vector(name + ".weight"), tensors.optional_vector(name + ".bias")};
}

LayerWeights load_layer(TensorLoader& tensors, const ModelConfig& config, std::int32_t index) {
  const Architecture& traits = *config.traits;
  const std::string prefix = str("blk.", index, ".");
  LayerWeights layer;
  if (traits.pre_norms) layer.attn_norm = load_norm(tensors, prefix + "attn_norm");
  load_projections(tensors, config, prefix, layer);
  layer.q_norm = tensors.optional_vector(prefix + "attn_q_norm.weight");
  layer.k_norm = tensors.optional_vector(prefix + "attn_k_norm.weight");
  layer.sinks = tensors.optional_vector(prefix + "attn_sinks.weight");
  layer.attn_output = tensors.matrix(prefix + "attn_output.weight");
  layer.attn_output_bias = tensors.optional_vector(prefix + "attn_output.bias");
  if (traits.post_norms) layer.attn_post_norm = load_norm(tensors, prefix + "post_attention_norm");
  if (traits.pre_norms) {
    layer.ffn_norm = load_norm(tensors, prefix + std::string(traits.ffn_norm));
  }
  if (config.experts.count > 0) {
    layer.router = tensors.matrix(prefix + "ffn_gate_inp.weight");
    layer.router_bias = tensors.optional_vector(prefix + "ffn_gate_inp.bias");
    layer.mlp = load_mlp(tensors, config, prefix, "_exps");
  } else {
    layer.mlp = load_mlp(tensors, config, prefix, "");
  }
  if (config.experts.shared_width > 0) {
    layer.shared_gate = tensors.matrix(prefix + "ffn_gate_inp_shexp.weight");
    layer.shared = load_mlp(tensors, config, prefix, "_shexp");
  }
  if (traits.post_norms) layer.ffn_post_norm = load_norm(tensors, prefix + "post_ffw_norm");
  return layer;
}

MlpWeights Mlp::weights(Activation activation) const {
  return {gate.get(),         up.get(),         down.get(),        activation,
          data_of(gate_bias), data_of(up_bias), data_of(down_bias)};
}

std::size_t Norm::bytes() const { return bytes_of(gain) + bytes_of(bias); }

std::size_t Mlp::bytes() const {
  return bytes_of(gate) + bytes_of(up) + bytes_of(down) + bytes_of(gate_bias) + bytes_of(up_bias) +
         bytes_of(down_bias);
}

std::size_t LayerWeights::bytes() const {
  std::size_t sum = mlp.bytes() + shared.bytes();
  for (const Norm* norm : {&attn_norm, &attn_post_norm, &ffn_norm, &ffn_post_norm}) {
    sum += norm->bytes();
  }
  for (const auto* weight : {&attn_q, &attn_k, &attn_v, &attn_output, &router, &shared_gate}) {
    sum += bytes_of(*weight);
  }
  for (const auto* buffer :
       {&q_bias, &k_bias, &v_bias, &q_norm, &k_norm, &sinks, &attn_output_bias, &router_bias}) {
    sum += bytes_of(*buffer);
  }
  return sum;
}

std::shared_ptr<const Model> Model::load(const std::string& path, const Placement& placement,
                                         const LoadProgress& progress) {
  std::shared_ptr<Model> model(new Model());
  model->file_ = GgufFile::open(path);
  naming_file(*model->file_, [&] {
    model->config_ = read_config(*model->file_);
    model->spans_ = placement.spans(model->config_.layers);
    check_tensors(model->config_, *model->file_);
    ModelLoader(*model, progress).load();
  });
  return model;
}

void Model::visit_reads(const ReadVisitor& visit) const {
  for (const LayerWeights& layer : layers_) {
    const bool routed = layer.router != nullptr;
    for (const auto* weight : {&layer.mlp.gate, &layer.mlp.up, &layer.mlp.down}) {
      if (*weight) visit(**weight, routed ? config_.experts.used : 1.0, routed);
    }
    for (const auto* weight :
         {&layer.attn_q, &layer.attn_k, &layer.attn_v, &layer.attn_output, &layer.router,
          &layer.shared_gate, &layer.shared.gate, &layer.shared.up, &layer.shared.down}) {
      if (*weight) visit(**weight, 1.0, false);
    }
  }
  visit(*output_, 1.0, false);
}

std::size_t Model::weight_bytes() const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < spans_.size(); ++i) sum += weight_bytes(i);
  return sum;
}

std::size_t Model::weight_bytes(std::size_t span) const {
  std::size_t sum = 0;
  for (std::int32_t i = spans_[span].first; i < spans_[span].end; ++i) {
    sum += layers_[static_cast<std::size_t>(i)].bytes();
  }
  if (span == 0) sum += token_embedding_->bytes();
  if (span + 1 < spans_.size()) return sum;
  return sum + output_norm_.bytes() + (output_ != token_embedding_ ? output_->bytes() : 0);
}

}  // namespace specdec
