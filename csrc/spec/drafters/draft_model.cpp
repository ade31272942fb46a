#include "spec/drafters/draft_model.h"

#include <algorithm>

#include "core/error.h"
#include "spec/tokens_in_place.h"

namespace specdec {
namespace {

constexpr std::int32_t kPrefillChunk = 512;
// A reduced head scores the tokens of the text up to a multiple of this.
constexpr std::size_t kFollowStep = 64;

}  // namespace

DraftModelDrafter::DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx,
                                     DType kv_type, DraftShape shape)
    : state_(std::move(model), n_ctx, kv_type), shape_(std::move(shape)) {
  checked_max_draft(shape_.max_draft);
}

std::size_t DraftModelDrafter::scratch_bytes() const {
  return state_.scratch_bytes() + sampler_.bytes() + picker_.bytes() +
         (head_ ? head_->scratch_bytes() : 0);
}

std::size_t DraftModelDrafter::weight_bytes() const {
  return state_.model().weight_bytes() + (head_ ? head_->weight_bytes() : 0);
}

void DraftModelDrafter::set_min_confidence(float probability) {
  if (!(probability >= 0.0f && probability < 1.0f)) {
    throw InvalidArgument(str("min_confidence is ", probability, "; it must be 0 to below 1"));
  }
  min_confidence_ = probability;
}

void DraftModelDrafter::reduce_vocabulary(DraftVocabulary vocabulary) {
  head_ = std::make_unique<ReducedHead>(state_.shared_model(), std::move(vocabulary));
}

void DraftModelDrafter::translate_text(TranslateTokens translate) {
  SPECDEC_CHECK(head_ != nullptr, "a draft with its own tokenizer needs to know the shared tokens");
  text_ = std::make_unique<TranslatedText>(std::move(translate));
}

// The committed text in the draft's tokens.
std::span<const TokenId> DraftModelDrafter::draft_text(std::span<const TokenId> tokens) {
  return text_ ? text_->update(tokens) : tokens;
}

// One pass; tokens are the draft's.
bool DraftModelDrafter::run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents,
                            LogitRows rows, const CancelFlag* cancel, const DrawnToken* drawn) {
  if (!state_.run(tokens, parents, head_ ? LogitRows{} : rows, cancel, {}, drawn)) return false;
  if (head_ && rows.count > 0) {
    head_->run(state_.activations(), static_cast<std::int32_t>(tokens.size()), rows.count);
  }
  return true;
}

bool DraftModelDrafter::append(std::span<const TokenId> tokens, LogitRows rows,
                               const CancelFlag* cancel, const DrawnToken* drawn) {
  if (!run(tokens, {}, rows, cancel, drawn)) return false;
  cached_.insert(cached_.end(), tokens.begin(), tokens.end());
  return true;
}

// Of the i-th row of the last pass that had them, by the target's ids.
const float* DraftModelDrafter::logits(const DraftContext& context, std::int32_t row) {
  return head_ ? head_->logits(state_.workspace(), row, context.draw.vocab) : state_.logits(row);
}

bool DraftModelDrafter::prepare(const DraftContext& context) {
  const std::span<const TokenId> text = draft_text(context.tokens);
  cut_cache(text);
  // All but the last token, which the first propose() takes with what else is new.
  const std::size_t wanted =
      std::min(text.empty() ? 0 : text.size() - 1, static_cast<std::size_t>(state_.n_ctx()));
  if (cached_.size() >= wanted) return true;
  const std::size_t count = std::min<std::size_t>(wanted - cached_.size(), kPrefillChunk);
  append(text.subspan(cached_.size(), count), {0}, context.cancel);
  return cached_.size() >= wanted;
}

// Runs what is new in the text; the logits of the pending token are the last pass's then.
bool DraftModelDrafter::catch_up(std::span<const TokenId> text, const CancelFlag* cancel) {
  SPECDEC_DCHECK(cached_.size() < text.size(), cached_.size(), " cached rows of ", text.size(),
                 " tokens");
  if (head_) head_->follow(text.first(text.size() / kFollowStep * kFollowStep));
  std::span<const TokenId> tail = text.subspan(cached_.size());
  while (!tail.empty()) {
    // A tail longer than a chunk: the drafter sat out for a while.
    const std::size_t chunk = std::min<std::size_t>(tail.size(), kPrefillChunk);
    if (!append(tail.first(chunk), {chunk == tail.size() ? 1 : 0}, cancel)) return false;
    tail = tail.subspan(chunk);
  }
  return true;
}

Proposal DraftModelDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  const std::span<const TokenId> text = draft_text(context.tokens);
  const std::int32_t room = state_.n_ctx() - static_cast<std::int32_t>(text.size());
  const std::int32_t count = std::min({budget, shape_.max_draft, room + 1});
  if (text.empty() || count <= 0) return proposal;
  cut_cache(text);
  if (!catch_up(text, context.cancel)) return proposal;
  if (shape_.is_chain()) {
    draft_chain(context, count, proposal);
  } else {
    draft_tree(context, count, proposal);
  }
  return proposal;
}

// Can the host do without the tokens of a chain? Not where it maps them to the draft's own.
bool DraftModelDrafter::stays_in_place(const DraftContext& context) const {
  return min_confidence_ == 0.0f && text_ == nullptr && state_.model().spans().size() == 1 &&
         specdec::stays_in_place(context, state_.backend());
}

void DraftModelDrafter::draft_chain(const DraftContext& context, std::int32_t count,
                                    Proposal& proposal) {
  const bool in_place = stays_in_place(context);
  for (;;) {
    const float* row = logits(context, 0);
    if (!sampler_.draw(context, state_.backend(), state_.workspace(), row, proposal, in_place,
                       min_confidence_)) {
      break;
    }
    if (proposal.size() >= count) break;
    const TokenId last = proposal.tokens.back();
    const TokenId token = head_ && !in_place ? head_->draft_id(last) : last;
    if (token < 0 && !in_place) break;
    if (!append({&token, 1}, {1}, context.cancel, proposal.drawn)) break;
  }
  hand_over(context, state_.workspace(), proposal);
}

std::vector<TokenProb> DraftModelDrafter::likeliest(const DraftContext& context, std::int32_t row,
                                                    std::int32_t count) {
  return picker_.pick(context, state_.backend(), state_.workspace(), logits(context, row),
                      context.draw.vocab, count);
}

void DraftModelDrafter::draft_tree(const DraftContext& context, std::int32_t count,
                                   Proposal& proposal) {
  TreeGrowth tree = shape_.tree(count);
  // Where a tree grows by confidence the host must see it.
  picker_.begin(!shape_.fixed.empty() && stays_in_place(context));
  tree.add_children(-1, likeliest(context, 0, tree.branches()));
  while (score_frontier(context, tree)) {
  }
  tree.finish(proposal);
  proposal.drawn = picker_.drawn();
  hand_over(context, state_.workspace(), proposal);
}

// One step: a pass over the inner nodes. False when there is nothing left to score.
bool DraftModelDrafter::score_frontier(const DraftContext& context, TreeGrowth& tree) {
  const std::vector<std::int32_t> frontier = tree.next_frontier();
  if (frontier.empty()) return false;
  auto [tokens, parents] = tree.rows(frontier);
  const bool known = picker_.drawn() == nullptr;
  for (TokenId& token : tokens) token = head_ && known ? head_->draft_id(token) : token;
  const std::int32_t base = state_.cache().length();
  if (static_cast<std::int32_t>(tokens.size()) > state_.n_ctx() - base) return false;
  const LogitRows logit_rows{static_cast<std::int32_t>(frontier.size())};
  if (!run(tokens, parents, logit_rows, context.cancel, picker_.drawn())) return false;
  state_.cache().truncate(base);
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    tree.add_children(frontier[i],
                      likeliest(context, static_cast<std::int32_t>(i), tree.branches()));
  }
  return true;
}

void DraftModelDrafter::learn_tokens(const Proposal& proposal) {
  if (proposal.drawn == nullptr || proposal.drawn != sampler_.drawn()) return;
  for (TokenId& token : cached_) {
    if (token < 0) token = proposal.tokens[static_cast<std::size_t>(place_of(token))];
  }
}

void DraftModelDrafter::commit(std::span<const TokenId> tokens) { cut_cache(draft_text(tokens)); }

// Keeps the cache rows that the text begins with.
void DraftModelDrafter::cut_cache(std::span<const TokenId> text) {
  // At most all but the last token: that one is pending here as well.
  const std::size_t limit = std::min(cached_.size(), text.empty() ? 0 : text.size() - 1);
  std::size_t common = 0;
  while (common < limit && cached_[common] == text[common]) ++common;
  cached_.resize(common);
  state_.cache().truncate(static_cast<std::int32_t>(common));
}

void DraftModelDrafter::reset() { commit({}); }

}  // namespace specdec
