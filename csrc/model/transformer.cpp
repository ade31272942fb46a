#include "model/transformer.h"

#include <algorithm>

#include "backend/transfer.h"
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

// One pass, span after span.
class ForwardPass {
 public:
  ForwardPass(const Model& model, std::span<Activations> activations,
              std::span<const PassInput> inputs, std::int32_t logit_rows,
              const PassOptions& options)
      : model_(model),
        config_(model.config()),
        acts_(activations),
        inputs_(inputs),
        logit_rows_(logit_rows),
        options_(options),
        plan_(inputs, config_.vocab_rows) {
    SPECDEC_CHECK(acts_.size() == model.spans().size(), acts_.size(), " activations for ",
                  model.spans().size(), " spans");
    SPECDEC_CHECK(logit_rows >= 0 && logit_rows <= rows(), logit_rows, " logit rows of ", rows());
    for (std::size_t i = 0; i < acts_.size(); ++i) {
      acts_[i].reserve(config_, rows(), i + 1 == acts_.size() ? logit_rows : 0);
    }
    head().reserve_captured(model, rows(), static_cast<std::int32_t>(options.capture.size()));
  }

  // False if cancelled between two layers.
  bool run(const CancelFlag* cancel) {
    const std::vector<std::int32_t> layers = layers_to_run(model_, options_.layers);
    std::span<const std::int32_t> left = layers;
    for (std::size_t i = 0; i < acts_.size(); ++i) {
      const auto end = std::ranges::lower_bound(left, model_.spans()[i].end);
      const std::span<const std::int32_t> mine(left.begin(), end);
      left = left.subspan(mine.size());
      enter(i);
      if (!run_span(i, mine, cancel)) return false;
    }
    return true;
  }

 private:
  std::int32_t rows() const { return plan_.pass.rows; }
  Activations& head() { return acts_.back(); }

  // Brings the residual stream to a span: from the embedding, or from the span before.
  void enter(std::size_t i) {
    const Backend& backend = *model_.spans()[i].backend;
    Activations& act = acts_[i];
    plan_.enter(i, inputs_, backend, act.workspace());
    upload_positions(backend, act);
    if (i > 0) {
      move_hidden(i - 1, i);
    } else {
      embed(backend, act);
    }
  }

  // The angles and scales that depend on positions: once for all layers of a span.
  void upload_positions(const Backend& backend, Activations& act) const {
    Workspace& ws = act.workspace();
    plan_.fill_angles(backend, ws, model_.rope(), false, *act.rope);
    if (act.local_rope) plan_.fill_angles(backend, ws, model_.rope(), true, *act.local_rope);
    if (act.query_scales) {
      plan_.fill_query_scales(backend, ws, config_.query_growth, config_.query_growth_length,
                              *act.query_scales);
    }
  }

  void embed(const Backend& backend, Activations& act) const {
    Workspace& ws = act.workspace();
    backend.embed_rows(ws, plan_.pass, model_.token_embedding(), act.hidden->f32());
    if (config_.embedding_scale == 1.0f) return;
    backend.scale(ws, static_cast<std::int64_t>(rows()) * config_.width, act.hidden->f32(),
                  config_.embedding_scale);
  }

  // The layers of a span, and the head where it is the last one.
  bool run_span(std::size_t i, std::span<const std::int32_t> layers, const CancelFlag* cancel) {
    const bool last = i + 1 == acts_.size();
    const auto body = [&] {
      for (const std::int32_t layer : layers) {
        if (cancel != nullptr && cancel->is_set()) return false;
        run_layer(i, layer);
      }
      if (!last) return true;
      capture_hidden(i, config_.layers);
      run_head(model_.backend(), config_, model_.output_norm(), model_.output(), logit_rows_,
               plan_.pass, head());
      return true;
    };
    if (cancel != nullptr && cancel->is_set()) return false;
    // Kept states go to another backend from here.
    if (!last && !options_.capture.empty()) return body();
    std::vector<std::int64_t> key = {acts_[i].generation(), logit_rows_,
                                     static_cast<std::int64_t>(layers.size())};
    key.insert(key.end(), layers.begin(), layers.end());
    key.insert(key.end(), options_.capture.begin(), options_.capture.end());
    return model_.spans()[i].backend->run_recorded(acts_[i].workspace(), key, body);
  }

  void move_hidden(std::size_t from, std::size_t to) {
    const std::size_t floats =
        static_cast<std::size_t>(rows()) * static_cast<std::size_t>(config_.width);
    transfer({*model_.spans()[from].backend, acts_[from].workspace()}, acts_[from].hidden->f32(),
             {*model_.spans()[to].backend, acts_[to].workspace()}, acts_[to].hidden->f32(),
             floats * sizeof(float));
  }

  void run_layer(std::size_t i, std::int32_t layer) {
    const LayerSpan& span = model_.spans()[i];
    Activations& act = acts_[i];
    capture_hidden(i, layer);
    const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
    const bool local = config_.is_local(layer) && act.local_rope;
    plan_.pass.rope_cos_sin = (local ? act.local_rope : act.rope)->f32();
    const float* input = act.hidden->f32();
    if (weights.attn_norm) {
      run_norm(*span.backend, act.workspace(), config_, weights.attn_norm, rows(), input,
               act.normed->f32());
      input = act.normed->f32();
    }
    run_block(*span.backend, config_, weights, {layer, layer - span.first}, plan_.pass, input, act);
  }

  // Copies the residual stream to its place in `captured`, if that of `layer` is wanted.
  void capture_hidden(std::size_t i, std::int32_t layer) {
    const std::int32_t width = config_.width;
    const std::span<const std::int32_t> wanted = options_.capture;
    for (std::size_t column = 0; column < wanted.size(); ++column) {
      if (wanted[column] != layer) continue;
      // Where the head is elsewhere, its own residual stream is not in use yet.
      if (i + 1 < acts_.size()) move_hidden(i, acts_.size() - 1);
      model_.backend().copy_rows(head().workspace(), rows(), width, head().hidden->f32(), width,
                                 head().captured->f32() + column * static_cast<std::size_t>(width),
                                 static_cast<std::int64_t>(wanted.size()) * width);
    }
  }

  const Model& model_;
  const ModelConfig& config_;
  std::span<Activations> acts_;
  std::span<const PassInput> inputs_;
  std::int32_t logit_rows_;
  const PassOptions& options_;
  PassPlan plan_;
};

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
    ++generation_;
  }
  if (logit_rows > logit_rows_) {
    logits = floats(logit_rows, config.vocab_rows);
    logit_rows_ = logit_rows;
    ++generation_;
  }
}

void Activations::reserve_captured(const Model& model, std::int32_t rows, std::int32_t states) {
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(states) *
                            static_cast<std::size_t>(model.config().width) * sizeof(float);
  if (bytes <= (captured ? captured->bytes() : 0)) return;
  captured = backend_.allocate(bytes);
  ++generation_;
}

std::size_t Activations::bytes() const {
  std::size_t sum = workspace_->bytes();
  for (const auto* buffer : {&hidden, &normed, &branch, &query, &attention, &rope, &local_rope,
                             &query_scales, &shared, &shared_gate, &logits, &captured}) {
    if (*buffer) sum += (*buffer)->bytes();
  }
  return sum;
}

bool forward(const Model& model, std::span<Activations> activations,
             std::span<const PassInput> inputs, LogitRows logit_rows, const CancelFlag* cancel,
             const PassOptions& options) {
  if (!ForwardPass(model, activations, inputs, logit_rows.count, options).run(cancel)) return false;
  for (const PassInput& input : inputs) {
    input.cache->append(static_cast<std::int32_t>(input.tokens.size()));
  }
  return true;
}

}  // namespace specdec
