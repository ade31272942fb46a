#include "spec/chain_sampler.h"

#include "backend/transfer.h"

namespace specdec {
namespace {

// A row of floats [vocab], kept for the next time.
float* row_of(std::unique_ptr<Buffer>& row, const Backend& backend, std::int32_t vocab) {
  const std::size_t bytes = static_cast<std::size_t>(vocab) * sizeof(float);
  if (!row || row->bytes() < bytes) row = backend.allocate(bytes);
  return row->f32();
}

}  // namespace

// The logits as the target's are changed before the filters.
const float* ChainSampler::adjusted(const DrawParams& draw, const Backend& backend,
                                    Workspace& workspace, const float* logits) {
  if (!draw.adjusts_logits()) return logits;
  float* out = row_of(adjusted_, backend, draw.vocab);
  backend.adjust_logits(workspace, logits, draw, counts_, out);
  return out;
}

// Where the verify step can read the distribution of token `index`.
const float* ChainSampler::for_target(const DraftContext& context, const Backend& backend,
                                      Workspace& workspace, const float* weights,
                                      std::size_t index) {
  if (context.target == nullptr || context.target->backend().device() == backend.device()) {
    return weights;
  }
  const Backend& target = context.target->backend();
  if (target_weights_.size() <= index) target_weights_.resize(index + 1);
  float* out = row_of(target_weights_[index], target, context.draw.vocab);
  transfer({backend, workspace}, weights, {target, context.target->workspace()}, out,
           static_cast<std::size_t>(context.draw.vocab) * sizeof(float));
  return out;
}

const DrawnToken* ChainSampler::drawn() const {
  return drawn_ ? static_cast<const DrawnToken*>(drawn_->data()) : nullptr;
}

bool ChainSampler::draw(const DraftContext& context, const Backend& backend, Workspace& workspace,
                        const float* logits, Proposal& proposal, bool in_place,
                        float min_confidence) {
  const DrawParams& draw = context.draw;
  const std::size_t index = proposal.tokens.size();
  if (context.counts != nullptr && index == 0) counts_ = *context.counts;
  if (weights_.size() <= index) weights_.resize(index + 1);
  float* weights = row_of(weights_[index], backend, draw.vocab);
  const float* row = adjusted(draw, backend, workspace, logits);
  const bool greedy = draw.filter.greedy();
  const bool sampled = draw.rule == AcceptRule::kRejection && !greedy;
  const RngPurpose purpose = sampled ? RngPurpose::kDraftDraw : RngPurpose::kTargetDraw;
  const std::uint64_t position = context.tokens.size() + index;
  DrawnToken drawn;
  if (min_confidence > 0.0f) {
    // The likeliest token weighs 1. At temperature 0 nothing else does: there the draft's own
    // distribution tells.
    const FilterParams filter = greedy ? FilterParams{} : draw.filter;
    drawn.total = backend.distribution(workspace, row, draw.vocab, filter, nullptr, weights);
    const auto mass = static_cast<double>(drawn.total);
    if (kMassUnit < static_cast<double>(min_confidence) * mass) return false;
  }
  if (min_confidence > 0.0f && !greedy) {
    drawn.token =
        backend.draw(workspace, {weights, drawn.total}, draw.vocab, draw.seed, position, purpose);
  } else {
    if (!drawn_) drawn_ = backend.allocate(kMaxDraft * sizeof(DrawnToken));
    DrawnToken* place = static_cast<DrawnToken*>(drawn_->data()) + index;
    backend.filter_and_draw(workspace, row, draw.vocab, draw.filter, weights, draw.seed, position,
                            purpose, place);
    if (in_place) {
      drawn.token = token_in_place(static_cast<std::int32_t>(index));
      proposal.drawn = this->drawn();
    } else {
      backend.download(workspace, &drawn, place, sizeof(drawn));
    }
  }
  if (sampled) {
    proposal.dists.push_back(
        {for_target(context, backend, workspace, weights, index), drawn.total});
  }
  proposal.push_chain(drawn.token, sampled ? static_cast<std::int32_t>(index) : -1);
  if (context.counts != nullptr) counts_.add_output(drawn.token);
  return true;
}

std::size_t ChainSampler::bytes() const {
  std::size_t sum = (adjusted_ ? adjusted_->bytes() : 0) + (drawn_ ? drawn_->bytes() : 0);
  for (const auto* rows : {&weights_, &target_weights_}) {
    for (const auto& row : *rows) sum += row ? row->bytes() : 0;
  }
  return sum;
}

}  // namespace specdec
