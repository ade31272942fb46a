#include "spec/drafters/eagle.h"

#include <algorithm>

#include "core/error.h"
#include "spec/tokens_in_place.h"

namespace specdec {
namespace {

// Rows that wait for the next proposal at most; more are run at once, so that a drafter that is not
// asked for a while needs little memory.
constexpr std::int32_t kMaxPending = 64;

}  // namespace

EagleDrafter::EagleDrafter(std::shared_ptr<const EagleHead> head, std::int32_t n_ctx, DType kv_type,
                           DraftShape shape)
    : head_(std::move(head)), shape_(std::move(shape)), state_(head_, n_ctx, kv_type) {
  checked_max_draft(shape_.max_draft);
}

std::vector<std::int32_t> EagleDrafter::hidden_layers() const { return head_->config().states; }

std::size_t EagleDrafter::state_floats() const {
  return head_->config().states.size() * static_cast<std::size_t>(head_->config().target_width);
}

std::size_t EagleDrafter::scratch_bytes() const {
  std::size_t sum = state_.bytes() + sampler_.bytes() + picker_.bytes();
  for (const auto* one :
       {&root_.hidden, &root_.logits, &pending_states_, &fused_, &outputs_, &scattered_}) {
    sum += *one ? (*one)->bytes() : 0;
  }
  return sum;
}

// Room for so many floats; what was there is lost where it grows.
float* EagleDrafter::buffer(std::unique_ptr<Buffer>& buffer, std::size_t floats) {
  const std::size_t bytes = floats * sizeof(float);
  if (!buffer || buffer->bytes() < bytes) buffer = state_.backend().allocate(bytes);
  return buffer->f32();
}

// --- Rows made of the target's hidden states -----------------------------------------------------

std::int32_t EagleDrafter::hidden_rows_held(std::span<const TokenId> tokens) const {
  const auto mismatch = std::mismatch(seen_.begin(), seen_.end(), tokens.begin(), tokens.end());
  const auto common = static_cast<std::int32_t>(mismatch.first - seen_.begin());
  const std::int32_t rows = std::max(0, common - 1);
  const auto all = static_cast<std::int32_t>(tokens.size()) - 1;
  const bool as_it_was = rows == cached() + pending_ && (root_.valid || pending_ > 0);
  // Without the last row's output nothing can be drafted: let it be computed again.
  return rows == all && !as_it_was ? std::max(0, rows - 1) : rows;
}

void EagleDrafter::commit(std::span<const TokenId> tokens) {
  const auto mismatch = std::mismatch(seen_.begin(), seen_.end(), tokens.begin(), tokens.end());
  const auto common = static_cast<std::size_t>(mismatch.first - seen_.begin());
  if (common == seen_.size()) return;
  const auto rows = static_cast<std::int32_t>(common) - 1;
  seen_.resize(rows > 0 ? common : 0);
  root_.valid = false;
  pending_ = std::clamp(rows - cached(), 0, pending_);
  if (cached() > rows) state_.cache().truncate(std::max(0, rows));
}

void EagleDrafter::take_hidden(const DraftContext& context, const HiddenRows& hidden) {
  SPECDEC_CHECK(context.target != nullptr && &context.target->model() == &head_->target(),
                "an EAGLE-3 head drafts for the model it was loaded with");
  const std::int32_t end =
      std::min(hidden.first_position + hidden.size(), state_.cache().capacity());
  commit(context.tokens.first(static_cast<std::size_t>(hidden.first_position) + 1));
  if (seen_.empty() && hidden.first_position == 0) seen_.push_back(context.tokens[0]);
  const std::int32_t first = cached() + pending_;
  if (first != hidden.first_position || end <= first) return;  // rows are missing, or no room
  store_states(context, hidden, end - first);
  root_.valid = false;
  for (std::int32_t i = first; i < end; ++i) {
    seen_.push_back(context.tokens[static_cast<std::size_t>(i) + 1]);
  }
  if (pending_ >= kMaxPending) catch_up(context.cancel);
}

// Appends the states of the first `count` rows to the pending ones.
void EagleDrafter::store_states(const DraftContext& context, const HiddenRows& hidden,
                                std::int32_t count) {
  const Backend& backend = state_.backend();
  const std::size_t row = state_floats();
  const std::size_t floats = static_cast<std::size_t>(pending_ + count) * row;
  if (!pending_states_ || pending_states_->bytes() < floats * sizeof(float)) {
    auto larger = backend.allocate(floats * sizeof(float));
    if (pending_ > 0) {
      const auto cols = static_cast<std::int64_t>(row);
      backend.copy_rows(state_.workspace(), pending_, static_cast<std::int32_t>(row),
                        pending_states_->f32(), cols, larger->f32(), cols);
    }
    pending_states_ = std::move(larger);
  }
  backend.order(state_.workspace(), context.target->workspace());  // what it has read, and moved
  for (std::int32_t i = 0; i < count; ++i, ++pending_) {
    hidden.copy(backend, context.target->workspace(), i, head_->config().states,
                pending_states_->f32() + static_cast<std::size_t>(pending_) * row);
  }
  backend.order(context.target->workspace(), state_.workspace());
}

// Runs the pending rows; the last one is what drafting starts from. False if cancelled.
bool EagleDrafter::catch_up(const CancelFlag* cancel) {
  if (pending_ == 0) return true;
  const std::int32_t width = head_->config().layer.width;
  float* fused =
      buffer(fused_, static_cast<std::size_t>(pending_) * static_cast<std::size_t>(width));
  state_.fuse(pending_, pending_states_->f32(), fused);
  const auto rows = std::span<const TokenId>(seen_).subspan(static_cast<std::size_t>(cached()) + 1);
  SPECDEC_DCHECK(static_cast<std::int32_t>(rows.size()) == pending_, rows.size(), " tokens for ",
                 pending_, " rows");
  if (!state_.run(rows, {}, fused, 1, cancel)) return false;
  keep_root(pending_ - 1);
  pending_ = 0;
  return true;
}

void EagleDrafter::keep_root(std::int32_t row) {
  const Backend& backend = state_.backend();
  const std::int32_t width = head_->config().layer.width;
  const std::int32_t vocab = head_->config().layer.vocab_rows;
  float* hidden = buffer(root_.hidden, static_cast<std::size_t>(width));
  float* logits = buffer(root_.logits, static_cast<std::size_t>(vocab));
  backend.copy_rows(state_.workspace(), 1, width, state_.hidden(row), width, hidden, width);
  backend.copy_rows(state_.workspace(), 1, vocab, state_.logits(0), vocab, logits, vocab);
  root_.valid = true;
}

// --- Drafting ------------------------------------------------------------------------------------

Proposal EagleDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  const bool current =
      seen_.size() == context.tokens.size() &&
      std::equal(seen_.begin(), seen_.end(), context.tokens.begin(), context.tokens.end());
  if (!current || !catch_up(context.cancel) || !root_.valid) return proposal;
  const std::int32_t base = cached();
  const std::int32_t room = state_.cache().capacity() - base;  // rows; the first token needs none
  const std::int32_t count = std::min({budget, shape_.max_draft, room + 1});
  if (shape_.is_chain()) {
    draft_chain(context, count, proposal);
  } else {
    draft_tree(context, count, proposal);
  }
  state_.cache().truncate(base);
  return proposal;
}

// Logits over the draft vocabulary as logits over the target's.
const float* EagleDrafter::target_logits(const DraftContext& context, const float* logits) {
  const auto count = static_cast<std::int32_t>(head_->target_ids().size());
  if (count == 0) return logits;
  float* out = buffer(scattered_, static_cast<std::size_t>(context.draw.vocab));
  state_.backend().scatter_logits(state_.workspace(), count, logits, head_->target_ids_in_place(),
                                  context.draw.vocab, out);
  return out;
}

void EagleDrafter::draft_chain(const DraftContext& context, std::int32_t count,
                               Proposal& proposal) {
  const std::int32_t width = head_->config().layer.width;
  const float* logits = root_.logits->f32();
  const float* hidden = root_.hidden->f32();
  float* fused = buffer(fused_, static_cast<std::size_t>(width));
  const bool in_place = stays_in_place(context, state_.backend());
  for (;;) {
    sampler_.draw(context, state_.backend(), state_.workspace(), target_logits(context, logits),
                  proposal, in_place);
    if (proposal.size() >= count) break;
    state_.backend().copy_rows(state_.workspace(), 1, width, hidden, width, fused, width);
    const std::span<const TokenId> last(&proposal.tokens.back(), 1);
    if (!state_.run(last, {}, fused, 1, context.cancel, proposal.drawn)) break;
    logits = state_.logits(0);
    hidden = state_.hidden(0);
  }
  hand_over(context, state_.workspace(), proposal);
}

// The likeliest tokens, as ids of the target, with the request's filters.
std::vector<TokenProb> EagleDrafter::likeliest(const DraftContext& context, const float* logits,
                                               std::int32_t count) {
  const std::vector<TokenId>& ids = head_->target_ids();
  const std::int32_t vocab =
      ids.empty() ? context.draw.vocab : static_cast<std::int32_t>(ids.size());
  std::vector<TokenProb> top =
      picker_.pick(context, state_.backend(), state_.workspace(), logits, vocab, count);
  for (TokenProb& one : top) {
    if (!ids.empty()) one.id = ids[static_cast<std::size_t>(one.id)];
  }
  return top;
}

void EagleDrafter::draft_tree(const DraftContext& context, std::int32_t count, Proposal& proposal) {
  TreeGrowth tree = shape_.tree(count);
  // Where a tree grows by confidence the host must see it. Ids of its own are the host's to map.
  picker_.begin(!shape_.fixed.empty() && head_->target_ids().empty() &&
                stays_in_place(context, state_.backend()));
  tree.add_children(-1, likeliest(context, root_.logits->f32(), tree.branches()));
  while (score_frontier(context, tree)) {
  }
  tree.finish(proposal);
  proposal.drawn = picker_.drawn();
  hand_over(context, state_.workspace(), proposal);
}

// One step: a pass over the inner nodes. False when there is nothing left to score.
bool EagleDrafter::score_frontier(const DraftContext& context, TreeGrowth& tree) {
  const std::vector<std::int32_t> frontier = tree.next_frontier();
  if (frontier.empty()) return false;
  const auto [tokens, parents] = tree.rows(frontier);
  const auto count = static_cast<std::int32_t>(tokens.size());
  const std::int32_t base = cached();
  if (count > state_.cache().capacity() - base) return false;

  const Backend& backend = state_.backend();
  const std::int32_t width = head_->config().layer.width;
  float* fused = buffer(fused_, static_cast<std::size_t>(count) * static_cast<std::size_t>(width));
  for (std::int32_t i = 0; i < count; ++i) {
    // A parent was expanded before: its output is that of its row in the last step.
    const std::ptrdiff_t parent = parents[static_cast<std::size_t>(i)];
    const float* source = parent < 0 ? root_.hidden->f32() : outputs_->f32() + parent * width;
    backend.copy_rows(state_.workspace(), 1, width, source, width,
                      fused + static_cast<std::ptrdiff_t>(i) * width, width);
  }
  const bool done = state_.run(tokens, parents, fused, static_cast<std::int32_t>(frontier.size()),
                               context.cancel, picker_.drawn());
  if (!done) return false;
  state_.cache().truncate(base);
  for (std::size_t i = 0; i < frontier.size(); ++i) {
    const float* logits = state_.logits(static_cast<std::int32_t>(i));
    tree.add_children(frontier[i], likeliest(context, logits, tree.branches()));
  }
  float* outputs =
      buffer(outputs_, static_cast<std::size_t>(count) * static_cast<std::size_t>(width));
  backend.copy_rows(state_.workspace(), count, width, state_.hidden(0), width, outputs, width);
  return true;
}

}  // namespace specdec
