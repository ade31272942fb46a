#include "spec/drafters/draft_model.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::int32_t kPrefillChunk = 512;

}  // namespace

DraftModelDrafter::DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx,
                                     DType kv_type, std::int32_t max_draft)
    : state_(std::move(model), n_ctx, kv_type), max_draft_(checked_max_draft(max_draft)) {}

std::size_t DraftModelDrafter::scratch_bytes() const {
  return state_.activations().bytes() + sampler_.bytes();
}

bool DraftModelDrafter::run(std::span<const TokenId> tokens, LogitRows rows,
                            const CancelFlag* cancel) {
  if (!state_.run(tokens, {}, rows, cancel)) return false;
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  return true;
}

bool DraftModelDrafter::prepare(const DraftContext& context) {
  commit(context.tokens);
  // All but the last token, which the first propose() takes with what else is new.
  const std::size_t wanted =
      std::min(context.tokens.size() - 1, static_cast<std::size_t>(state_.n_ctx()));
  if (cached_.size() >= wanted) return true;
  const std::size_t count = std::min<std::size_t>(wanted - cached_.size(), kPrefillChunk);
  run(context.tokens.subspan(cached_.size(), count), {0}, context.cancel);
  return cached_.size() >= wanted;
}

Proposal DraftModelDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  const std::int32_t room = state_.n_ctx() - static_cast<std::int32_t>(context.tokens.size());
  const std::int32_t count = std::min({budget, max_draft_, room + 1});
  if (count <= 0) return proposal;
  SPECDEC_DCHECK(cached_.size() < context.tokens.size(), cached_.size(), " cached rows of ",
                 context.tokens.size(), " tokens");
  std::span<const TokenId> tail = context.tokens.subspan(cached_.size());
  while (proposal.size() < count) {
    // A tail longer than a chunk: the drafter sat out for a while.
    const std::size_t chunk = std::min<std::size_t>(tail.size(), kPrefillChunk);
    const bool last = chunk == tail.size();
    if (!run(tail.first(chunk), {last ? 1 : 0}, context.cancel)) break;
    tail = tail.subspan(chunk);
    if (!last) continue;
    sampler_.draw(context, state_.backend(), state_.workspace(), state_.logits(0), proposal);
    tail = {&proposal.tokens.back(), 1};
  }
  return proposal;
}

void DraftModelDrafter::commit(std::span<const TokenId> tokens) {
  // At most all but the last token: that one is pending here as well.
  const std::size_t limit = std::min(cached_.size(), tokens.empty() ? 0 : tokens.size() - 1);
  std::size_t common = 0;
  while (common < limit && cached_[common] == tokens[common]) ++common;
  cached_.resize(common);
  state_.cache().truncate(static_cast<std::int32_t>(common));
}

void DraftModelDrafter::reset() { commit({}); }

}  // namespace specdec
