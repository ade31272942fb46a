#include "spec/chain_sampler.h"

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

bool ChainSampler::draw(const DraftContext& context, const Backend& backend, Workspace& workspace,
                        const float* logits, Proposal& proposal, float min_confidence) {
  const DrawParams& draw = context.draw;
  const std::size_t index = proposal.tokens.size();
  if (context.counts != nullptr && index == 0) counts_ = *context.counts;
  if (weights_.size() <= index) weights_.resize(index + 1);
  float* weights = row_of(weights_[index], backend, draw.vocab);
  const float* row = adjusted(draw, backend, workspace, logits);
  const auto distribution = [&](const FilterParams& filter) {
    return backend.distribution(workspace, row, draw.vocab, filter, nullptr, weights);
  };
  // The likeliest token weighs 1. At temperature 0 nothing else does: there the draft's own
  // distribution tells.
  const bool greedy = draw.filter.greedy();
  std::uint64_t total = 0;
  if (!greedy || min_confidence > 0.0f) {
    total = distribution(greedy ? FilterParams{} : draw.filter);
    if (kMassUnit < static_cast<double>(min_confidence) * static_cast<double>(total)) return false;
  }
  if (greedy) total = distribution(draw.filter);
  const DistributionView dist{weights, total};
  const bool sampled = draw.rule == AcceptRule::kRejection && !greedy;
  const TokenId token =
      backend.draw(workspace, dist, draw.vocab, draw.seed, context.tokens.size() + index,
                   sampled ? RngPurpose::kDraftDraw : RngPurpose::kTargetDraw);
  if (sampled) proposal.dists.push_back(dist);
  proposal.push_chain(token, sampled ? static_cast<std::int32_t>(index) : -1);
  if (context.counts != nullptr) counts_.add_output(token);
  return true;
}

std::size_t ChainSampler::bytes() const {
  std::size_t sum = adjusted_ ? adjusted_->bytes() : 0;
  for (const auto& row : weights_) sum += row ? row->bytes() : 0;
  return sum;
}

}  // namespace specdec
