// Sampling by the book: sort everything, then cut. See sampling_rule.h for what is computed.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/ref/ref_backend.h"
#include "backend/verify.h"

namespace specdec {
namespace {

struct Candidate {
  float z;
  TokenId id;
  std::uint64_t mass;
};

// The allowed tokens with a logit above -infinity, best first. logits [vocab]
std::vector<Candidate> ranked_candidates(const float* logits, std::int32_t vocab, float temperature,
                                         const std::uint32_t* mask_bits) {
  std::vector<Candidate> candidates;
  float max = -std::numeric_limits<float>::infinity();
  for (TokenId id = 0; id < vocab; ++id) {
    // A NaN fails this comparison, so it counts as -infinity.
    if (is_allowed(mask_bits, id) && logits[id] > -std::numeric_limits<float>::infinity()) {
      candidates.push_back({logits[id], id, 0});
      max = std::max(max, logits[id]);
    }
  }
  for (Candidate& c : candidates) {
    c.z = scaled_logit(c.z, max, 1.0f / temperature);
    c.mass = weight_to_mass(exp_f32(c.z));
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return ranks_before(a.z, a.id, b.z, b.id);
  });
  return candidates;
}

// How many of the ranked candidates the filters keep.
std::size_t kept_count(const std::vector<Candidate>& ranked, const FilterParams& filter) {
  std::size_t count = ranked.size();
  if (filter.top_k > 0) count = std::min(count, static_cast<std::size_t>(filter.top_k));
  if (filter.top_p < 1.0f) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < count; ++i) total += ranked[i].mass;
    const std::uint64_t target = top_p_target(filter.top_p, total);
    std::uint64_t running = 0;
    std::size_t needed = 0;
    while (needed < count && running < target) running += ranked[needed++].mass;
    count = needed;
  }
  if (filter.min_p > 0.0f) {
    const float floor = min_p_floor(filter.min_p);
    while (count > 0 && ranked[count - 1].z < floor) --count;
  }
  return count;
}

}  // namespace

std::uint64_t RefBackend::distribution(Workspace&, const float* logits, std::int32_t vocab,
                                       const FilterParams& filter, const std::uint32_t* mask_bits,
                                       float* weight_out) const {
  std::fill(weight_out, weight_out + vocab, 0.0f);
  std::uint64_t total = 0;
  if (!filter.greedy()) {
    const auto ranked = ranked_candidates(logits, vocab, filter.temperature, mask_bits);
    const std::size_t count = kept_count(ranked, filter);
    for (std::size_t i = 0; i < count && ranked[i].mass > 0; ++i) {
      weight_out[ranked[i].id] = exp_f32(ranked[i].z);
      total += ranked[i].mass;
    }
  }
  if (total == 0) {  // greedy, or nothing is left: argmax_token covers both
    weight_out[argmax_token(logits, vocab, mask_bits)] = 1.0f;
    total = weight_to_mass(1.0f);
  }
  return total;
}

TokenId RefBackend::draw(Workspace&, const DistributionView& dist, std::int32_t vocab,
                         std::uint64_t seed, std::uint64_t position, RngPurpose purpose) const {
  return race_draw(dist, vocab, seed, position, purpose);
}

Verdict RefBackend::verify(Workspace& ws, const VerifyInput& input) const {
  return verify_on_host(*this, ws, input);
}

}  // namespace specdec
