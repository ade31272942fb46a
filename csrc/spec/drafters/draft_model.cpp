#include "spec/drafters/draft_model.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::int32_t kPrefillChunk = 512;

// A row of floats [vocab], kept for the next time.
float* row_of(std::unique_ptr<Buffer>& row, const Backend& backend, std::int32_t vocab) {
  const std::size_t bytes = static_cast<std::size_t>(vocab) * sizeof(float);
  if (!row || row->bytes() < bytes) row = backend.allocate(bytes);
  return row->f32();
}

}  // namespace

DraftModelDrafter::DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx,
                                     DType kv_type, std::int32_t max_draft)
    : state_(std::move(model), n_ctx, kv_type), max_draft_(max_draft) {
  if (max_draft < 1 || max_draft > kMaxDraft) {
    throw InvalidArgument(str("max_draft is ", max_draft, "; it must be 1 to ", kMaxDraft));
  }
  weights_.resize(static_cast<std::size_t>(max_draft));
}

std::size_t DraftModelDrafter::scratch_bytes() const {
  std::size_t sum = state_.activations().bytes();
  for (const auto& row : weights_) sum += row ? row->bytes() : 0;
  return sum + (adjusted_ ? adjusted_->bytes() : 0);
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
  if (context.counts != nullptr) counts_ = *context.counts;
  std::span<const TokenId> tail = context.tokens.subspan(cached_.size());
  while (proposal.size() < count) {
    // A tail longer than a chunk: the drafter sat out for a while.
    const std::size_t chunk = std::min<std::size_t>(tail.size(), kPrefillChunk);
    const bool last = chunk == tail.size();
    if (!run(tail.first(chunk), {last ? 1 : 0}, context.cancel)) break;
    tail = tail.subspan(chunk);
    if (!last) continue;
    draw_token(context, proposal);
    tail = {&proposal.tokens.back(), 1};
  }
  return proposal;
}

float* DraftModelDrafter::weight_row(std::int32_t i, std::int32_t vocab) {
  return row_of(weights_[static_cast<std::size_t>(i)], state_.backend(), vocab);
}

// The logits of the last pass as the target's are changed before the filters.
const float* DraftModelDrafter::adjusted_logits(const DrawParams& draw) {
  const float* logits = state_.logits(0);
  if (!draw.adjusts_logits()) return logits;
  float* out = row_of(adjusted_, state_.backend(), draw.vocab);
  state_.backend().adjust_logits(state_.workspace(), logits, draw, counts_, out);
  return out;
}

// Draws the next token of the chain from the logits of the last pass. Under `coupled` with the
// target's own noise, so that both often draw the same token; under `rejection` with noise of its
// own.
void DraftModelDrafter::draw_token(const DraftContext& context, Proposal& proposal) {
  const DrawParams& draw = context.draw;
  const std::int32_t index = proposal.size();
  float* weights = weight_row(index, draw.vocab);
  const std::uint64_t total = state_.backend().distribution(
      state_.workspace(), adjusted_logits(draw), draw.vocab, draw.filter, nullptr, weights);
  const DistributionView dist{weights, total};
  const bool sampled = draw.rule == AcceptRule::kRejection && !draw.filter.greedy();
  const TokenId token =
      state_.backend().draw(state_.workspace(), dist, draw.vocab, draw.seed,
                            context.tokens.size() + static_cast<std::size_t>(index),
                            sampled ? RngPurpose::kDraftDraw : RngPurpose::kTargetDraw);
  if (sampled) proposal.dists.push_back(dist);
  proposal.push_chain(token, sampled ? index : -1);
  if (context.counts != nullptr) counts_.add_output(token);
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
