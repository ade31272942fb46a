#include "model/transformer.h"

#include "core/error.h"

namespace specdec {
namespace {

// The host-side arrays of a pass and the Pass that points into them.
struct PassPlan {
  std::vector<TokenId> tokens;          // [M]
  std::vector<std::int32_t> positions;  // [M]
  std::vector<std::int32_t> parents;    // [M], segment-local
  std::vector<Segment> segments;
  Pass pass;
};

void append_segment(PassPlan& plan, const PassInput& input) {
  const std::int32_t rows = static_cast<std::int32_t>(input.tokens.size());
  const std::int32_t base = input.cache->length();
  SPECDEC_CHECK(rows > 0 && base + rows <= input.cache->capacity(), rows, " rows at ", base, " of ",
                input.cache->capacity());
  SPECDEC_CHECK(input.parents.empty() || input.parents.size() == input.tokens.size(),
                input.parents.size(), " parents for ", rows, " rows");
  Segment segment;
  segment.cache = input.cache->view();
  segment.base = base;
  segment.first_row = static_cast<std::int32_t>(plan.tokens.size());
  segment.rows = rows;
  for (std::int32_t i = 0; i < rows; ++i) {
    const std::int32_t parent = input.parents.empty() ? i - 1 : input.parents[i];
    SPECDEC_CHECK(parent >= -1 && parent < i, "row ", i, " has parent ", parent);
    segment.is_chain = segment.is_chain && parent == i - 1;
    const std::size_t parent_row = static_cast<std::size_t>(segment.first_row + parent);
    plan.positions.push_back(parent < 0 ? base : plan.positions[parent_row] + 1);
    plan.parents.push_back(parent);
    plan.tokens.push_back(input.tokens[i]);
  }
  plan.segments.push_back(segment);
}

PassPlan plan_pass(const Model& model, std::span<const PassInput> inputs) {
  PassPlan plan;
  for (const PassInput& input : inputs) append_segment(plan, input);
  for (const TokenId token : plan.tokens) {
    SPECDEC_CHECK(token >= 0 && token < model.config().vocab_rows, "token id ", token, " of ",
                  model.config().vocab_rows);
  }
  for (Segment& segment : plan.segments) segment.parents = &plan.parents[segment.first_row];
  plan.pass.rows = static_cast<std::int32_t>(plan.tokens.size());
  plan.pass.tokens = plan.tokens.data();
  plan.pass.positions = plan.positions.data();
  plan.pass.segments = plan.segments.data();
  plan.pass.segment_count = static_cast<std::int32_t>(plan.segments.size());
  return plan;
}

std::vector<std::int32_t> layers_to_run(const Model& model, std::span<const std::int32_t> chosen) {
  std::vector<std::int32_t> layers(chosen.begin(), chosen.end());
  for (std::int32_t i = 0; chosen.empty() && i < model.config().layers; ++i) layers.push_back(i);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    SPECDEC_CHECK(layers[i] > (i == 0 ? -1 : layers[i - 1]) && layers[i] < model.config().layers,
                  "layer ", layers[i], " of ", model.config().layers, " at index ", i);
  }
  return layers;
}

// hidden += attention(norm(hidden)); hidden += mlp(norm(hidden))
void run_layer(const Model& model, Activations& act, const Pass& pass, std::int32_t index) {
  const Backend& backend = model.backend();
  const ModelConfig& config = model.config();
  const LayerWeights& layer = model.layers()[static_cast<std::size_t>(index)];
  const AttentionShape shape = config.attention_shape();
  Workspace& ws = act.workspace();
  const std::int64_t hidden_count = static_cast<std::int64_t>(pass.rows) * config.width;
  float* hidden = act.hidden->f32();
  float* normed = act.normed->f32();
  float* branch = act.branch->f32();

  backend.rms_norm(ws, pass.rows, config.width, hidden, layer.attn_norm->f32(), config.rms_eps,
                   normed);
  backend.qkv_rope_store(ws, pass, index, normed,
                         {layer.attn_q.get(), layer.attn_k.get(), layer.attn_v.get()}, shape,
                         act.query->f32());
  backend.attention(ws, pass, index, act.query->f32(), shape, act.attention->f32());
  backend.matmul(ws, pass.rows, act.attention->f32(), *layer.attn_output, branch);
  backend.add(ws, hidden_count, hidden, branch);

  backend.rms_norm(ws, pass.rows, config.width, hidden, layer.ffn_norm->f32(), config.rms_eps,
                   normed);
  backend.gated_mlp(
      ws, pass.rows, normed,
      {layer.ffn_gate.get(), layer.ffn_up.get(), layer.ffn_down.get(), Activation::kSilu}, branch);
  backend.add(ws, hidden_count, hidden, branch);
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

// logits of the last `count` rows
void run_head(const Model& model, Activations& act, std::int32_t rows, std::int32_t count) {
  const ModelConfig& config = model.config();
  const std::size_t first = static_cast<std::size_t>(rows - count);
  const float* tail = act.hidden->f32() + first * static_cast<std::size_t>(config.width);
  model.backend().rms_norm(act.workspace(), count, config.width, tail, model.output_norm().f32(),
                           config.rms_eps, act.normed->f32());
  model.backend().matmul(act.workspace(), count, act.normed->f32(), model.output(),
                         act.logits->f32());
}

}  // namespace

Activations::Activations(const Backend& backend)
    : backend_(backend), workspace_(backend.make_workspace()) {}

void Activations::reserve(const Model& model, std::int32_t rows, std::int32_t logit_rows) {
  const ModelConfig& config = model.config();
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
  for (const auto* buffer :
       {&hidden, &normed, &branch, &query, &attention, &rope, &logits, &captured}) {
    if (*buffer) sum += (*buffer)->bytes();
  }
  return sum;
}

bool forward(const Model& model, Activations& act, std::span<const PassInput> inputs,
             LogitRows logit_rows, const CancelFlag* cancel, const PassOptions& options) {
  PassPlan plan = plan_pass(model, inputs);
  Pass& pass = plan.pass;
  SPECDEC_CHECK(logit_rows.count >= 0 && logit_rows.count <= pass.rows, logit_rows.count,
                " logit rows of ", pass.rows);
  act.reserve(model, pass.rows, logit_rows.count);
  act.reserve_captured(model, pass.rows, static_cast<std::int32_t>(options.capture.size()));

  std::vector<float> cos_sin(static_cast<std::size_t>(pass.rows) *
                             static_cast<std::size_t>(model.rope().pairs()) * 2);
  model.rope().fill(plan.positions, cos_sin.data());
  model.backend().upload(act.rope->data(), cos_sin.data(), cos_sin.size() * sizeof(float));
  pass.rope_cos_sin = act.rope->f32();

  model.backend().embed_rows(act.workspace(), pass, model.token_embedding(), act.hidden->f32());
  for (const std::int32_t layer : layers_to_run(model, options.layers)) {
    if (cancel != nullptr && cancel->is_set()) return false;
    capture_hidden(model, act, pass.rows, layer, options.capture);
    run_layer(model, act, pass, layer);
  }
  capture_hidden(model, act, pass.rows, model.config().layers, options.capture);
  if (logit_rows.count > 0) run_head(model, act, pass.rows, logit_rows.count);
  for (const PassInput& input : inputs) {
    input.cache->append(static_cast<std::int32_t>(input.tokens.size()));
  }
  return true;
}

}  // namespace specdec
