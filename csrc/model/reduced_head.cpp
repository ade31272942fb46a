#include "model/reduced_head.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "model/layer_pass.h"

namespace specdec {
namespace {

// Of a text: more would make the head large again.
constexpr std::size_t kMostFollowed = 4096;

std::string output_name(const Model& model) {
  return model.file()->find_tensor("output.weight") != nullptr ? "output.weight"
                                                               : "token_embd.weight";
}

}  // namespace

ReducedHead::ReducedHead(std::shared_ptr<const Model> model, DraftVocabulary vocabulary)
    : model_(std::move(model)), target_of_(std::move(vocabulary.target_of)) {
  const std::int32_t vocab = model_->config().vocab;
  if (!target_of_.empty() && target_of_.size() != static_cast<std::size_t>(vocab)) {
    throw InvalidArgument(
        str(target_of_.size(), " target ids are given for a draft of ", vocab, " tokens"));
  }
  for (std::size_t id = 0; id < target_of_.size(); ++id) {
    const TokenId target = target_of_[id];
    if (target < 0) continue;
    const auto place = static_cast<std::size_t>(target);
    if (draft_of_.size() <= place) draft_of_.resize(place + 1, -1);
    draft_of_[place] = static_cast<TokenId>(id);
  }
  in_base_.resize(static_cast<std::size_t>(vocab));
  for (const TokenId id : vocabulary.scored) {
    if (!may_score(id) || in_base_[static_cast<std::size_t>(id)]) {
      throw InvalidArgument(str("draft token ", id, " cannot be scored: the draft has ", vocab,
                                " tokens, and each may be given once if the target has it"));
    }
    in_base_[static_cast<std::size_t>(id)] = true;
  }
  if (vocabulary.scored.empty()) throw InvalidArgument("a draft vocabulary without tokens");
  load(base_, std::move(vocabulary.scored));
  follow({});
}

bool ReducedHead::may_score(TokenId id) const {
  return id >= 0 && id < model_->config().vocab && target_id(id) >= 0;
}

TokenId ReducedHead::target_id(TokenId draft_token) const {
  return target_of_.empty() ? draft_token : target_of_[static_cast<std::size_t>(draft_token)];
}

TokenId ReducedHead::draft_id(TokenId target_token) const {
  if (target_of_.empty()) return target_token;
  const auto place = static_cast<std::size_t>(target_token);
  return place < draft_of_.size() ? draft_of_[place] : -1;
}

void ReducedHead::load(Part& part, std::vector<TokenId> ids) const {
  part.ids = std::move(ids);
  part.weight.reset();
  if (part.ids.empty()) return;
  TensorView view = model_->file()->view(output_name(*model_));
  const std::size_t row_bytes = specdec::row_bytes(view.dtype, view.cols());
  part.source.resize(part.ids.size() * row_bytes);
  for (std::size_t i = 0; i < part.ids.size(); ++i) {
    std::memcpy(part.source.data() + i * row_bytes,
                view.data + static_cast<std::size_t>(part.ids[i]) * row_bytes, row_bytes);
  }
  view.shape = {part.ids.size(), view.cols()};
  view.data = part.source.data();
  view.bytes = part.source.size();
  view.mapped = false;
  part.weight = model_->backend().load_weight(view, WeightUse::kProducts);
}

void ReducedHead::follow(std::span<const TokenId> text) {
  std::vector<TokenId> ids;
  for (const TokenId id : text) {
    if (may_score(id) && !in_base_[static_cast<std::size_t>(id)]) ids.push_back(id);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() > kMostFollowed) ids.resize(kMostFollowed);
  if (target_ids_ && ids == extra_.ids) return;
  load(extra_, std::move(ids));
  std::vector<TokenId> targets;
  for (const Part* part : {&base_, &extra_}) {
    for (const TokenId id : part->ids) targets.push_back(target_id(id));
  }
  joined_size_ = static_cast<std::int32_t>(targets.size());
  target_ids_ = model_->backend().allocate(targets.size() * sizeof(TokenId));
  model_->backend().upload(target_ids_->data(), targets.data(), targets.size() * sizeof(TokenId));
}

float* ReducedHead::grown(std::unique_ptr<Buffer>& buffer, std::size_t floats) const {
  const std::size_t bytes = floats * sizeof(float);
  if (!buffer || buffer->bytes() < bytes) buffer = model_->backend().allocate(bytes);
  return buffer->f32();
}

void ReducedHead::score(Part& part, Activations& activations, std::int32_t count) const {
  if (part.ids.empty()) return;
  float* out = grown(part.logits, static_cast<std::size_t>(count) * part.ids.size());
  model_->backend().matmul(activations.workspace(), count, activations.normed->f32(), *part.weight,
                           out);
  finish_logits(model_->backend(), activations.workspace(), model_->config(),
                static_cast<std::int64_t>(count) * part.size(), out);
}

void ReducedHead::run(Activations& activations, std::int32_t rows, std::int32_t count) {
  const ModelConfig& config = model_->config();
  const float* tail = activations.hidden->f32() + static_cast<std::size_t>(rows - count) *
                                                      static_cast<std::size_t>(config.width);
  run_norm(model_->backend(), activations.workspace(), config, model_->output_norm(), count, tail,
           activations.normed->f32());
  score(base_, activations, count);
  score(extra_, activations, count);
}

const float* ReducedHead::logits(Workspace& workspace, std::int32_t i, std::int32_t target_vocab) {
  float* joined = grown(joined_, static_cast<std::size_t>(joined_size_));
  float* place = joined;
  for (const Part* part : {&base_, &extra_}) {
    if (part->ids.empty()) continue;
    const std::int32_t size = part->size();
    model_->backend().copy_rows(workspace, 1, size,
                                part->logits->f32() + static_cast<std::ptrdiff_t>(i) * size, size,
                                place, size);
    place += size;
  }
  float* out = grown(by_target_id_, static_cast<std::size_t>(target_vocab));
  model_->backend().scatter_logits(workspace, joined_size_, joined,
                                   static_cast<const TokenId*>(target_ids_->data()), target_vocab,
                                   out);
  return out;
}

std::size_t ReducedHead::scratch_bytes() const {
  std::size_t sum = 0;
  for (const auto* buffer :
       {&base_.logits, &extra_.logits, &target_ids_, &joined_, &by_target_id_}) {
    if (*buffer) sum += (*buffer)->bytes();
  }
  return sum;
}

}  // namespace specdec
