#include "spec/rank_picker.h"

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::int32_t kMostPicked = kMaxDraft * kMaxDraft;

}  // namespace

void RankPicker::begin(bool in_place) {
  in_place_ = in_place;
  used_ = 0;
}

std::vector<TokenProb> RankPicker::pick(const DraftContext& context, const Backend& backend,
                                        Workspace& workspace, const float* logits,
                                        std::int32_t vocab, std::int32_t count) {
  const std::size_t bytes = static_cast<std::size_t>(vocab) * sizeof(float);
  if (!weights_ || weights_->bytes() < bytes) weights_ = backend.allocate(bytes);
  const FilterParams filter = context.draw.filter.greedy() ? FilterParams{} : context.draw.filter;
  if (!in_place_) {
    const std::uint64_t total =
        backend.distribution(workspace, logits, vocab, filter, nullptr, weights_->f32());
    return backend.top_tokens(workspace, {weights_->f32(), total}, vocab, count);
  }
  if (!drawn_) drawn_ = backend.allocate(kMostPicked * sizeof(DrawnToken));
  SPECDEC_CHECK(used_ + count <= kMostPicked, used_ + count, " tokens picked for a proposal");
  backend.rank_tokens(workspace, logits, vocab, filter, count, weights_->f32(),
                      static_cast<DrawnToken*>(drawn_->data()) + used_);
  std::vector<TokenProb> picked;
  for (std::int32_t i = 0; i < count; ++i) picked.push_back({token_in_place(used_++), 0.0});
  return picked;
}

const DrawnToken* RankPicker::drawn() const {
  return in_place_ && drawn_ ? static_cast<const DrawnToken*>(drawn_->data()) : nullptr;
}

std::size_t RankPicker::bytes() const {
  return (weights_ ? weights_->bytes() : 0) + (drawn_ ? drawn_->bytes() : 0);
}

}  // namespace specdec
