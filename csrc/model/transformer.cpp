#include "model/transformer.h"

#include "core/error.h"
#include "model/layer_pass.h"

namespace specdec {
namespace {

std::vector<std::int32_t> layers_to_run(const Model& model, std::span<const std::int32_t> chosen) {
  std::vector<std::int32_t> layers(chosen.begin(), chosen.end());
  for (std::int32_t i = 0; chosen.empty() && i < model.config().layers; ++i) layers.push_back(i);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    SPECDEC_CHECK(layers[i] > (i == 0 ? -1 : layers[i - 1]) && layers[i] < model.config().layers,
                  "layer ", layers[i], " of ", model.config().layers, " at index ", i);
  }
  return layers;
}

// Copies the residual stream to its place in `captured`, if that of `layer` is wanted.
void capture_hidden(const Model& model, Activations& act, std::int32_t rows, std::int32_t layer,
                    std::span<const std::int32_t> wanted) {
  const std::int32_t width = model.config().width;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] != layer) continue;
    model.backend().copy_rows(act.workspace(), rows, width, act.hidden->f32(), width,
                              act.captured->f32() + i * static_cast<std::size_t>(width),
                              static_cast<std::int64_t>(wanted.size()) * width);
  }
}

// The angles and scales that depend on positions: once for all layers.
void upload_positions(const Model& model, const PassPlan& plan, Activations& act) {
  const ModelConfig& config = model.config();
  plan.fill_angles(model.backend(), model.rope(), false, *act.rope);
  if (act.local_rope) plan.fill_angles(model.backend(), model.rope(), true, *act.local_rope);
  if (act.query_scales) {
    plan.fill_query_scales(model.backend(), config.query_growth, config.query_growth_length,
                           *act.query_scales);
  }
}

void embed(const Model& model, const Pass& pass, Activations& act) {
  const ModelConfig& config = model.config();
  model.backend().embed_rows(act.workspace(), pass, model.token_embedding(), act.hidden->f32());
  if (config.embedding_scale == 1.0f) return;
  model.backend().scale(act.workspace(), static_cast<std::int64_t>(pass.rows) * config.width,
                        act.hidden->f32(), config.embedding_scale);
}

// One layer. pass.rope_cos_sin is set to the layer's.
void run_layer(const Model& model, std::int32_t layer, Pass& pass, Activations& act) {
  const ModelConfig& config = model.config();
  const LayerWeights& weights = model.layers()[static_cast<std::size_t>(layer)];
  const bool local = config.is_local(layer) && act.local_rope;
  pass.rope_cos_sin = (local ? act.local_rope : act.rope)->f32();
  const float* input = act.hidden->f32();
  if (weights.attn_norm) {
    run_norm(model.backend(), act.workspace(), config, weights.attn_norm, pass.rows, input,
             act.normed->f32());
    input = act.normed->f32();
  }
  run_block(model.backend(), config, weights, layer, pass, input, act);
}

}  // namespace

Activations::Activations(const Backend& backend)
    : backend_(backend), workspace_(backend.make_workspace()) {}

void Activations::reserve(const ModelConfig& config, std::int32_t rows, std::int32_t logit_rows) {
  const auto floats = [&](std::int32_t count, std::int32_t cols) {
    return backend_.allocate(static_cast<std::size_t>(count) * static_cast<std::size_t>(cols) *
                             sizeof(float));
  };
  if (rows > rows_) {
    hidden = floats(rows, config.width);
    normed = floats(rows, config.width);
    branch = floats(rows, config.width);
    query = floats(rows, config.heads * config.head_dim);
    attention = floats(rows, config.heads * config.head_dim);
    rope = floats(rows, config.rope.dims);
    if (config.local_rope) local_rope = floats(rows, config.rope.dims);
    if (config.query_growth != 0.0) query_scales = floats(rows, 1);
    if (config.experts.shared_width > 0) {
      shared = floats(rows, config.width);
      shared_gate = floats(rows, 1);
    }
    rows_ = rows;
  }
  if (logit_rows > logit_rows_) {
    logits = floats(logit_rows, config.vocab_rows);
    logit_rows_ = logit_rows;
  }
}

void Activations::reserve_captured(const Model& model, std::int32_t rows, std::int32_t states) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(states) *
                            static_cast<std::size_t>(model.config().width) * sizeof(float);
  if (bytes > (captured ? captured->bytes() : 0)) captured = backend_.allocate(bytes);
}

std::size_t Activations::bytes() const {
  std::size_t sum = workspace_->bytes();
  for (const auto* buffer : {&hidden, &normed, &branch, &query, &attention, &rope, &local_rope,
                             &query_scales, &shared, &shared_gate, &logits, &captured}) {
    if (*buffer) sum += (*buffer)->bytes();
  }
  return sum;
}

bool forward(const Model& model, Activations& act, std::span<const PassInput> inputs,
             LogitRows logit_rows, const CancelFlag* cancel, const PassOptions& options) {
  const ModelConfig& config = model.config();
  PassPlan plan(inputs, config.vocab_rows);
  Pass& pass = plan.pass;
  SPECDEC_CHECK(logit_rows.count >= 0 && logit_rows.count <= pass.rows, logit_rows.count,
                " logit rows of ", pass.rows);
  act.reserve(config, pass.rows, logit_rows.count);
  act.reserve_captured(model, pass.rows, static_cast<std::int32_t>(options.capture.size()));

  upload_positions(model, plan, act);
  embed(model, pass, act);
  for (const std::int32_t layer : layers_to_run(model, options.layers)) {
    if (cancel != nullptr && cancel->is_set()) return false;
    capture_hidden(model, act, pass.rows, layer, options.capture);
    run_layer(model, layer, pass, act);
  }
  capture_hidden(model, act, pass.rows, config.layers, options.capture);
  run_head(model.backend(), config, model.output_norm(), model.output(), logit_rows.count, pass,
           act);
  for (const PassInput& input : inputs) {
    input.cache->append(static_cast<std::int32_t>(input.tokens.size()));
  }
  return true;
}

}  // namespace specdec
