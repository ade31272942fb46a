#include "spec/drafters/medusa.h"

#include <algorithm>

#include "core/error.h"
#include "spec/tokens_in_place.h"

namespace specdec {

MedusaDrafter::MedusaDrafter(std::shared_ptr<const MedusaHeads> heads, RankTree tree)
    : heads_(std::move(heads)), tree_(std::move(tree)), pass_(*heads_) {
  checked_max_draft(max_draft());
  if (depth_of(tree_) > heads_->config().heads) {
    throw InvalidArgument(str("the tree is ", depth_of(tree_), " deep, but there are only ",
                              heads_->config().heads, " Medusa heads"));
  }
}

std::vector<std::int32_t> MedusaDrafter::hidden_layers() const {
  return {heads_->target().config().layers};
}

// All but the last row, that of the token before the pending one, unless that is here already.
std::int32_t MedusaDrafter::hidden_rows_held(std::span<const TokenId> tokens) const {
  const std::size_t rows = tokens.empty() ? 0 : tokens.size() - 1;
  const bool held = seen_.size() == rows && std::equal(seen_.begin(), seen_.end(), tokens.begin());
  return static_cast<std::int32_t>(held || rows == 0 ? rows : rows - 1);
}

// Only the last row matters: that of the token before the pending one.
void MedusaDrafter::take_hidden(const DraftContext& context, const HiddenRows& hidden) {
  SPECDEC_CHECK(context.target != nullptr && &context.target->model() == &heads_->target(),
                "Medusa heads draft for the model they were loaded with");
  const Backend& backend = context.target->backend();
  Workspace& target = context.target->workspace();
  backend.order(pass_.workspace(), target);  // what it has read may be overwritten
  hidden.copy(backend, target, hidden.size() - 1, hidden_layers(), pass_.hidden());
  backend.order(target, pass_.workspace());
  const auto count = static_cast<std::size_t>(hidden.first_position + hidden.size());
  seen_.assign(context.tokens.begin(), context.tokens.begin() + static_cast<std::ptrdiff_t>(count));
}

Proposal MedusaDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  if (seen_.empty() || seen_.size() + 1 != context.tokens.size() ||
      !std::equal(seen_.begin(), seen_.end(), context.tokens.begin())) {
    return proposal;  // a reused prefix: its last hidden state was not kept
  }
  const RankTree tree(tree_.begin(), tree_.begin() + std::min(budget, max_draft()));
  const std::int32_t depth = depth_of(tree);
  const Backend& backend = heads_->target().backend();
  pass_.run(depth);
  picker_.begin(stays_in_place(context, backend));
  std::vector<std::vector<TokenProb>> guesses;  // [depth][ranks]
  for (std::int32_t i = 0; i < depth; ++i) {
    guesses.push_back(picker_.pick(context, backend, pass_.workspace(), pass_.logits(i),
                                   context.draw.vocab, most_children(tree)));
  }
  std::vector<std::int32_t> place(tree.size(), -1);  // in the proposal
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const RankNode& node = tree[i];
    const auto& ranked = guesses[static_cast<std::size_t>(node.depth)];
    const std::int32_t parent = node.parent < 0 ? -1 : place[static_cast<std::size_t>(node.parent)];
    // Where filters leave fewer tokens than the tree has ranks, a node and all below it fall away.
    if (static_cast<std::size_t>(node.rank) >= ranked.size()) continue;
    if (node.parent >= 0 && parent < 0) continue;
    place[i] = proposal.size();
    const TokenProb& guess = ranked[static_cast<std::size_t>(node.rank)];
    proposal.push_node(guess.id, parent, -1, static_cast<float>(guess.prob));
  }
  proposal.drawn = picker_.drawn();
  hand_over(context, pass_.workspace(), proposal);
  return proposal;
}

void MedusaDrafter::commit(std::span<const TokenId> tokens) {
  const bool prefix =
      seen_.size() < tokens.size() && std::equal(seen_.begin(), seen_.end(), tokens.begin());
  if (!prefix) seen_.clear();
}

}  // namespace specdec
