#include "model/layer_pass.h"

namespace specdec {
namespace {

const float* data_of(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? buffer->f32() : nullptr;
}

// One layer over one pass.
class BlockPass {
 public:
  BlockPass(const Backend& backend, const ModelConfig& config, const LayerWeights& weights,
            LayerPlace place, const Pass& pass, Activations& act)
      : backend_(backend),
        config_(config),
        weights_(weights),
        place_(place),
        pass_(pass),
        act_(act),
        ws_(act.workspace()) {}

  // branch = attention(input)
  void run_attention(const float* input) {
    AttentionShape shape = config_.attention_shape(place_.layer);
    shape.sinks = data_of(weights_.sinks);
    const QkvWeights qkv{weights_.attn_q.get(),    weights_.attn_k.get(),
                         weights_.attn_v.get(),    data_of(weights_.q_bias),
                         data_of(weights_.k_bias), data_of(weights_.v_bias),
                         config_.traits->qk_norm,  data_of(weights_.q_norm),
                         data_of(weights_.k_norm), config_.norm_eps};
    float* query = act_.query->f32();
    backend_.qkv_rope_store(ws_, pass_, place_.cached, input, qkv, shape, query);
    if (config_.query_growth != 0.0) {
      backend_.scale_rows(ws_, pass_.rows, config_.heads * config_.head_dim, query,
                          act_.query_scales->f32());
    }
    backend_.attention(ws_, pass_, place_.cached, query, shape, act_.attention->f32());
    backend_.matmul(ws_, pass_.rows, act_.attention->f32(), *weights_.attn_output, branch());
    if (weights_.attn_output_bias) {
      backend_.add_bias(ws_, pass_.rows, config_.width, branch(), weights_.attn_output_bias->f32());
    }
  }

  // branch = mlp(x), or the mixture. x [M, E] is normed or hidden
  void run_mlp(const float* x) {
    const MlpWeights mlp = weights_.mlp.weights(config_.traits->activation);
    if (!weights_.router) return backend_.gated_mlp(ws_, pass_.rows, x, mlp, branch());
    const ExpertConfig& experts = config_.experts;
    backend_.expert_mlp(ws_, pass_.rows, x,
                        {weights_.router.get(), data_of(weights_.router_bias), mlp, experts.used,
                         experts.softmax_of_used, experts.weight_scale},
                        branch());
    if (!weights_.shared) return;
    float *shared = act_.shared->f32(), *gate = act_.shared_gate->f32();
    backend_.gated_mlp(ws_, pass_.rows, x, weights_.shared.weights(config_.traits->activation),
                       shared);
    backend_.matmul(ws_, pass_.rows, x, *weights_.shared_gate, gate);
    backend_.add_gated(ws_, pass_.rows, config_.width, branch(), shared, gate);
  }

  // hidden += norm(branch) * residual scale
  void add_branch(const Norm& post_norm) {
    const std::int64_t count = static_cast<std::int64_t>(pass_.rows) * config_.width;
    if (post_norm) {
      run_norm(backend_, ws_, config_, post_norm, pass_.rows, branch(), branch());
    }
    if (config_.residual_scale != 1.0f) {
      backend_.scale(ws_, count, branch(), config_.residual_scale);
    }
    backend_.add(ws_, count, act_.hidden->f32(), branch());
  }

 private:
  float* branch() { return act_.branch->f32(); }

  const Backend& backend_;
  const ModelConfig& config_;
  const LayerWeights& weights_;
  LayerPlace place_;
  const Pass& pass_;
  Activations& act_;
  Workspace& ws_;
};

}  // namespace

void run_norm(const Backend& backend, Workspace& ws, const ModelConfig& config, const Norm& norm,
              std::int32_t rows, const float* x, float* out) {
  if (config.traits->norm == NormKind::kRms) {
    backend.rms_norm(ws, rows, config.width, x, norm.gain->f32(), config.norm_eps, out);
  } else {
    backend.layer_norm(ws, rows, config.width, x, norm.gain->f32(), data_of(norm.bias),
                       config.norm_eps, out);
  }
}

void run_block(const Backend& backend, const ModelConfig& config, const LayerWeights& weights,
               LayerPlace place, const Pass& pass, const float* input, Activations& act) {
  BlockPass block(backend, config, weights, place, pass, act);
  block.run_attention(input);
  block.add_branch(weights.attn_post_norm);
  const float* mlp_input = act.hidden->f32();
  if (weights.ffn_norm) {
    run_norm(backend, act.workspace(), config, weights.ffn_norm, pass.rows, mlp_input,
             act.normed->f32());
    mlp_input = act.normed->f32();
  }
  block.run_mlp(mlp_input);
  block.add_branch(weights.ffn_post_norm);
}

void finish_logits(const Backend& backend, Workspace& ws, const ModelConfig& config,
                   std::int64_t count, float* logits) {
  if (config.logit_scale != 1.0f) backend.scale(ws, count, logits, config.logit_scale);
  if (config.logit_cap != 0.0f) backend.soft_cap(ws, count, logits, config.logit_cap);
}

void run_head(const Backend& backend, const ModelConfig& config, const Norm& norm,
              const Weight& output, std::int32_t count, const Pass& pass, Activations& act) {
  if (count == 0) return;
  const std::size_t first = static_cast<std::size_t>(pass.rows - count);
  const float* tail = act.hidden->f32() + first * static_cast<std::size_t>(config.width);
  run_norm(backend, act.workspace(), config, norm, count, tail, act.normed->f32());
  backend.matmul(act.workspace(), count, act.normed->f32(), output, act.logits->f32());
  finish_logits(backend, act.workspace(), config,
                static_cast<std::int64_t>(count) * static_cast<std::int64_t>(output.rows()),
                act.logits->f32());
}

}  // namespace specdec
