#include "model/eagle_head.h"

#include <algorithm>

#include "core/error.h"
#include "core/printable.h"
#include "model/head_file.h"
#include "model/key_reader.h"
#include "model/layer_pass.h"
#include "model/tensor_loader.h"
#include "model/tensor_plan.h"

namespace specdec {
namespace {

constexpr std::size_t kMaxStates = 16;

std::vector<std::int32_t> read_states(const KeyReader& keys, std::int32_t target_layers) {
  // Current converters of llama.cpp call it target_layers.
  const std::string name = keys.first_of({"extract_layers", "target_layers"});
  const auto values = keys.metadata().find_int_array(keys.key(name));
  if (!values || values->empty() || values->size() > kMaxStates) {
    throw GgufError(str("key ", keys.key(name), " is missing, empty or too long: the ",
                        "layers of the target that the head reads from are not known"));
  }
  std::vector<std::int32_t> states;
  for (const std::int64_t value : *values) {
    if (value < 0 || value > target_layers) {
      throw IncompatibleModelsError(str("the EAGLE-3 head reads the state before layer ", value,
                                        ", but the target has ", target_layers, " layers"));
    }
    states.push_back(static_cast<std::int32_t>(value));
  }
  return states;
}

// Rows of the head's own output matrix, or of the target's.
std::int32_t read_draft_vocab(const GgufFile& file, const ModelConfig& target) {
  const TensorInfo* output = file.find_tensor("output.weight");
  if (output == nullptr) return target.vocab_rows;
  if (output->shape.size() != 2 || output->shape[0] > (1u << 24)) {
    throw GgufError("tensor 'output.weight' is no output matrix");
  }
  return static_cast<std::int32_t>(output->shape[0]);
}

std::vector<ExpectedTensor> expected_tensors(const EagleConfig& config, const ModelConfig& target) {
  const auto size = [](std::int32_t value) { return static_cast<std::size_t>(value); };
  const ModelConfig& layer = config.layer;
  const std::size_t width = size(layer.width), ffn = size(layer.ffn_width);
  const std::size_t queries = size(layer.heads) * size(layer.head_dim);
  const std::size_t keys = size(layer.kv_heads) * size(layer.head_dim);
  const bool own_width = layer.width == target.width;  // else the target's matrices do not fit
  return {
      {"fc.weight", {width, config.states.size() * size(config.target_width)}},
      {"blk.0.attn_norm.weight", {width}},
      {"blk.0.attn_norm_2.weight", {width}},
      {"blk.0.attn_q.weight", {queries, 2 * width}},
      {"blk.0.attn_k.weight", {keys, 2 * width}},
      {"blk.0.attn_v.weight", {keys, 2 * width}},
      {"blk.0.attn_output.weight", {width, queries}},
      {"blk.0.ffn_norm.weight", {width}},
      {"blk.0.ffn_gate.weight", {ffn, width}},
      {"blk.0.ffn_up.weight", {ffn, width}},
      {"blk.0.ffn_down.weight", {width, ffn}},
      {"output_norm.weight", {width}},
      {"output.weight", {size(layer.vocab_rows), width}, own_width},
      {"token_embd.weight", {size(target.vocab_rows), width}, own_width},
      {"rope_freqs.weight", {size(layer.rope.dims) / 2}, true},
  };
}

// The target's ids, checked: one of each, in the vocabulary.
std::vector<TokenId> read_target_ids(const GgufFile& file, std::int32_t draft_vocab,
                                     const ModelConfig& target) {
  const auto values = file.find_integers("d2t");
  if (!values) {
    if (draft_vocab < target.vocab || draft_vocab > target.vocab_rows) {
      throw IncompatibleModelsError(str("the EAGLE-3 head scores ", draft_vocab,
                                        " tokens without saying which of the target's ",
                                        target.vocab, " they are (tensor 'd2t' is missing)"));
    }
    return {};
  }
  if (values->size() != static_cast<std::size_t>(draft_vocab)) {
    throw GgufError(
        str("tensor 'd2t' names ", values->size(), " tokens, but the head scores ", draft_vocab));
  }
  std::vector<TokenId> ids;
  std::vector<bool> seen(static_cast<std::size_t>(target.vocab), false);
  for (const std::int64_t id : *values) {
    if (id < 0 || id >= target.vocab || seen[static_cast<std::size_t>(id)]) {
      throw IncompatibleModelsError(str("tensor 'd2t' names token ", id, ", which is ",
                                        id < 0 || id >= target.vocab
                                            ? str("not one of the target's ", target.vocab)
                                            : std::string("there already")));
    }
    seen[static_cast<std::size_t>(id)] = true;
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

}  // namespace

EagleConfig read_eagle_config(const GgufFile& file, const ModelConfig& target) {
  const KeyReader keys(file);
  if (keys.architecture() != "eagle3") {
    throw GgufError(
        str("key general.architecture is ", quoted(keys.architecture()),
            "; a file of an EAGLE-3 head says 'eagle3': make one with specdec convert"));
  }
  EagleConfig config;
  config.layer = read_layer_config(keys, file, *find_architecture("llama"));
  if (config.layer.layers != 1) {
    throw GgufError(str("key ", keys.key("block_count"), " is ", config.layer.layers,
                        "; an EAGLE-3 head has one layer"));
  }
  config.target_width = keys.dim("target_hidden_size");
  if (config.target_width != target.width) {
    throw IncompatibleModelsError(str("the EAGLE-3 head is made for a target of width ",
                                      config.target_width, ", but this one has ", target.width));
  }
  config.states = read_states(keys, target.layers);
  config.norm_before_residual = keys.flag_or("norm_before_residual", false);
  config.layer.vocab_rows = read_draft_vocab(file, target);
  config.layer.vocab = config.layer.vocab_rows;
  check_tensors(expected_tensors(config, target), "eagle3", file, {"d2t"});  // d2t: integers
  return config;
}

std::shared_ptr<const EagleHead> EagleHead::load(const std::string& path,
                                                 std::shared_ptr<const Model> target,
                                                 const LoadProgress& progress) {
  std::shared_ptr<EagleHead> made(new EagleHead());
  made->file_ = GgufFile::open(path);
  made->target_ = std::move(target);
  const ModelConfig& model = made->target_->config();
  naming_head_file(*made->file_, path, [&] {
    made->config_ = read_eagle_config(*made->file_, model);
    made->target_ids_ = read_target_ids(*made->file_, made->config_.layer.vocab_rows, model);
  });
  if (!made->target_ids_.empty()) {
    const std::size_t bytes = made->target_ids_.size() * sizeof(TokenId);
    made->ids_in_place_ = made->backend().allocate(bytes);
    made->backend().upload(made->ids_in_place_->data(), made->target_ids_.data(), bytes);
  }
  TensorLoader tensors(*made->file_, made->backend(), progress);
  made->rope_ = ModelRope(made->config_.layer, tensors.frequency_factors());
  made->fuse_ = tensors.matrix("fc.weight");
  made->hidden_norm_ = tensors.vector("blk.0.attn_norm_2.weight");
  made->layer_ = load_layer(tensors, made->config_.layer, 0);
  made->output_norm_ = load_norm(tensors, "output_norm");
  if (tensors.has("output.weight")) made->output_ = tensors.matrix("output.weight");
  if (tensors.has("token_embd.weight")) {
    made->embedding_ = tensors.matrix("token_embd.weight", WeightUse::kLookup);
  } else if (made->target_->spans().size() > 1) {
    // The target looks tokens up on the backend of its first layers, and this is another.
    made->embedding_ = made->backend().load_weight(made->target_->file()->view("token_embd.weight"),
                                                   WeightUse::kLookup);
  }
  return made;
}

std::size_t EagleHead::weight_bytes() const {
  std::size_t sum = fuse_->bytes() + hidden_norm_->bytes() + layer_.bytes() + output_norm_.bytes();
  if (output_) sum += output_->bytes();
  if (embedding_) sum += embedding_->bytes();
  return sum + target_ids_.size() * sizeof(TokenId);
}

EagleState::EagleState(std::shared_ptr<const EagleHead> head, std::int32_t n_ctx, DType kv_type)
    : head_(std::move(head)),
      cache_(std::vector<LayerSpan>{{head_->target().shared_backend(), 0, 1}}, kv_type,
             head_->config().layer.kv_heads, head_->config().layer.head_dim, n_ctx),
      activations_(head_->backend()) {}

std::size_t EagleState::bytes() const {
  return activations_.bytes() + (joined_ ? joined_->bytes() : 0);
}

void EagleState::fuse(std::int32_t rows, const float* states, float* out) {
  backend().matmul(workspace(), rows, states, *head_->fuse_, out);
}

const float* EagleState::hidden(std::int32_t i) {
  return activations_.hidden->f32() + static_cast<std::ptrdiff_t>(i) * head_->config().layer.width;
}

const float* EagleState::logits(std::int32_t i) {
  return activations_.logits->f32() +
         static_cast<std::ptrdiff_t>(i) * head_->config().layer.vocab_rows;
}

// input = [norm(embedding), norm(fused)]; hidden = fused (or its norm); then an ordinary layer.
bool EagleState::run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
                     const float* fused, std::int32_t logit_rows, const CancelFlag* cancel,
                     const DrawnToken* drawn) {
  if (cancel != nullptr && cancel->is_set()) return false;
  const EagleConfig& config = head_->config();
  const std::int32_t width = config.layer.width;
  const PassInput input{&cache_, tokens, parents, drawn};
  PassPlan plan({&input, 1}, head_->target().config().vocab_rows);
  const std::int32_t rows = plan.pass.rows;
  SPECDEC_CHECK(logit_rows >= 0 && logit_rows <= rows, logit_rows, " logit rows of ", rows);
  Activations& act = activations_;
  act.reserve(config.layer, rows, logit_rows);
  const std::size_t joined_bytes =
      static_cast<std::size_t>(rows) * 2 * static_cast<std::size_t>(width) * sizeof(float);
  if (!joined_ || joined_->bytes() < joined_bytes) joined_ = backend().allocate(joined_bytes);
  plan.enter(0, {&input, 1}, backend(), act.workspace());
  plan.fill_angles(backend(), act.workspace(), head_->rope_, false, *act.rope);
  plan.pass.rope_cos_sin = act.rope->f32();

  Workspace& ws = act.workspace();
  backend().embed_rows(ws, plan.pass, head_->embedding(), act.hidden->f32());
  const std::int64_t key[] = {act.generation(), logit_rows,
                              reinterpret_cast<std::intptr_t>(joined_->data()),
                              reinterpret_cast<std::intptr_t>(fused)};
  backend().run_recorded(ws, key, [&] {
    run_layer(plan.pass, fused, logit_rows);
    return true;
  });
  cache_.append(rows);
  return true;
}

void EagleState::run_layer(const Pass& pass, const float* fused, std::int32_t logit_rows) {
  const EagleConfig& config = head_->config();
  const std::int32_t width = config.layer.width, rows = pass.rows;
  Activations& act = activations_;
  Workspace& ws = act.workspace();
  float *hidden = act.hidden->f32(), *normed = act.normed->f32(), *joined = joined_->f32();
  backend().rms_norm(ws, rows, width, hidden, head_->layer_.attn_norm.gain->f32(),
                     config.layer.norm_eps, normed);
  backend().copy_rows(ws, rows, width, normed, width, joined, 2 * width);
  backend().rms_norm(ws, rows, width, fused, head_->hidden_norm_->f32(), config.layer.norm_eps,
                     normed);
  backend().copy_rows(ws, rows, width, normed, width, joined + width, 2 * width);
  backend().copy_rows(ws, rows, width, config.norm_before_residual ? normed : fused, width, hidden,
                      width);
  run_block(backend(), config.layer, head_->layer_, {0, 0}, pass, joined, act);
  run_head(backend(), config.layer, head_->output_norm_, head_->output(), logit_rows, pass, act);
}

}  // namespace specdec
