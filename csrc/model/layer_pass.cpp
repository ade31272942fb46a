#include "model/layer_pass.h"

namespace specdec {

void run_block(const Backend& backend, const ModelConfig& config, const LayerWeights& weights,
               std::int32_t layer, const Pass& pass, const float* input, Activations& act) {
  const AttentionShape shape = config.attention_shape();
  Workspace& ws = act.workspace();
  const std::int64_t hidden_count = static_cast<std::int64_t>(pass.rows) * config.width;
  float* hidden = act.hidden->f32();
  float* normed = act.normed->f32();
  float* branch = act.branch->f32();

  backend.qkv_rope_store(ws, pass, layer, input,
                         {weights.attn_q.get(), weights.attn_k.get(), weights.attn_v.get()}, shape,
                         act.query->f32());
  backend.attention(ws, pass, layer, act.query->f32(), shape, act.attention->f32());
  backend.matmul(ws, pass.rows, act.attention->f32(), *weights.attn_output, branch);
  backend.add(ws, hidden_count, hidden, branch);

  backend.rms_norm(ws, pass.rows, config.width, hidden, weights.ffn_norm->f32(), config.rms_eps,
                   normed);
  backend.gated_mlp(
      ws, pass.rows, normed,
      {weights.ffn_gate.get(), weights.ffn_up.get(), weights.ffn_down.get(), Activation::kSilu},
      branch);
  backend.add(ws, hidden_count, hidden, branch);
}

void run_head(const Backend& backend, const ModelConfig& config, Buffer& norm, const Weight& output,
              std::int32_t count, const Pass& pass, Activations& act) {
  if (count == 0) return;
  const std::size_t first = static_cast<std::size_t>(pass.rows - count);
  const float* tail = act.hidden->f32() + first * static_cast<std::size_t>(config.width);
  backend.rms_norm(act.workspace(), count, config.width, tail, norm.f32(), config.rms_eps,
                   act.normed->f32());
  backend.matmul(act.workspace(), count, act.normed->f32(), output, act.logits->f32());
}

}  // namespace specdec
