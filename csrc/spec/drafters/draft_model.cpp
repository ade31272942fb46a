#include "spec/drafters/draft_model.h"

#include <algorithm>

#include "core/error.h"
#include "spec/likeliest.h"

namespace specdec {
namespace {

constexpr std::int32_t kPrefillChunk = 512;

}  // namespace

DraftModelDrafter::DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx,
                                     DType kv_type, DraftShape shape)
    : state_(std::move(model), n_ctx, kv_type), shape_(std::move(shape)) {
  checked_max_draft(shape_.max_draft);
}

std::size_t DraftModelDrafter::scratch_bytes() const {
  return state_.activations().bytes() + sampler_.bytes() + (weights_ ? weights_->bytes() : 0);
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

// Runs what is new in the text; the logits of the pending token are the last pass's then.
bool DraftModelDrafter::catch_up(const DraftContext& context) {
  SPECDEC_DCHECK(cached_.size() < context.tokens.size(), cached_.size(), " cached rows of ",
                 context.tokens.size(), " tokens");
  std::span<const TokenId> tail = context.tokens.subspan(cached_.size());
  while (!tail.empty()) {
    // A tail longer than a chunk: the drafter sat out for a while.
    const std::size_t chunk = std::min<std::size_t>(tail.size(), kPrefillChunk);
    if (!run(tail.first(chunk), {chunk == tail.size() ? 1 : 0}, context.cancel)) return false;
    tail = tail.subspan(chunk);
  }
  return true;
}

Proposal DraftModelDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  const std::int32_t room = state_.n_ctx() - static_cast<std::int32_t>(context.tokens.size());
  const std::int32_t count = std::min({budget, shape_.max_draft, room + 1});
  if (count <= 0 || !catch_up(context)) return proposal;
  if (shape_.is_chain()) {
    draft_chain(context, count, proposal);
  } else {
    draft_tree(context, count, proposal);
  }
  return proposal;
}

void DraftModelDrafter::draft_chain(const DraftContext& context, std::int32_t count,
                                    Proposal& proposal) {
  for (;;) {
    sampler_.draw(context, state_.backend(), state_.workspace(), state_.logits(0), proposal);
    if (proposal.size() >= count) return;
    if (!run({&proposal.tokens.back(), 1}, {1}, context.cancel)) return;
  }
}

std::vector<TokenProb> DraftModelDrafter::likeliest(const DraftContext& context, std::int32_t row,
                                                    std::int32_t count) {
  const std::size_t bytes = static_cast<std::size_t>(context.draw.vocab) * sizeof(float);
  if (!weights_ || weights_->bytes() < bytes) weights_ = state_.backend().allocate(bytes);
  return likeliest_tokens(state_.backend(), state_.workspace(), state_.logits(row),
                          context.draw.vocab, context.draw.filter, count, weights_->f32());
}

void DraftModelDrafter::draft_tree(const DraftContext& context, std::int32_t count,
                                   Proposal& proposal) {
  TreeGrowth tree =
      shape_.fixed.empty() ? TreeGrowth(count, shape_.branches) : TreeGrowth(shape_.fixed, count);
  tree.add_children(-1, likeliest(context, 0, tree.branches()));
  while (score_frontier(context, tree)) {
  }
  tree.finish(proposal);
}

// One step: a pass over the inner nodes. False when there is nothing left to score.
bool DraftModelDrafter::score_frontier(const DraftContext& context, TreeGrowth& tree) {
  const std::vector<std::int32_t> frontier = tree.next_frontier();
  if (frontier.empty()) return false;
  const auto [tokens, parents] = tree.rows(frontier);
  const std::int32_t base = state_.cache().length();
  if (static_cast<std::int32_t>(tokens.size()) > state_.n_ctx() - base) return false;
  const LogitRows logit_rows{static_cast<std::int32_t>(frontier.size())};
  if (!state_.run(tokens, parents, logit_rows, context.cancel)) return false;
  state_.cache().truncate(base);
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    tree.add_children(frontier[i],
                      likeliest(context, static_cast<std::int32_t>(i), tree.branches()));
  }
  return true;
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
