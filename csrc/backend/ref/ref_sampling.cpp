// Sampling by the book: sort everything, then cut. See sampling_rule.h for what is computed.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/ref/ref_backend.h"
#include "backend/top_tokens.h"
#include "backend/verify.h"
#include "core/error.h"

namespace specdec {
namespace {

struct Candidate {
  float z;
  TokenId id;
  std::uint64_t mass;
};

// The largest logit of those that are allowed; a NaN fails the comparison, so it counts as
// -infinity.
float largest_logit(const float* logits, std::int32_t vocab, const std::uint32_t* mask_bits) {
  float max = -std::numeric_limits<float>::infinity();
  for (TokenId id = 0; id < vocab; ++id) {
    if (is_allowed(mask_bits, id) && logits[id] > max) max = logits[id];
  }
  return max;
}

std::uint64_t total_mass(const std::vector<Candidate>& candidates) {
  std::uint64_t total = 0;
  for (const Candidate& c : candidates) total += c.mass;
  return total;
}

// The allowed tokens that have a mass, best first. logits [vocab]
std::vector<Candidate> ranked_candidates(const float* logits, std::int32_t vocab, float temperature,
                                         const std::uint32_t* mask_bits) {
  std::vector<Candidate> candidates;
  const float max = largest_logit(logits, vocab, mask_bits);
  for (TokenId id = 0; id < vocab; ++id) {
    if (!is_allowed(mask_bits, id)) continue;
    if (!(logits[id] > -std::numeric_limits<float>::infinity())) continue;
    const float z = scaled_logit(logits[id], max, 1.0f / temperature);
    const std::uint64_t mass = weight_to_mass(exp_f32(z));
    if (mass > 0) candidates.push_back({z, id, mass});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return ranks_before(a.z, a.id, b.z, b.id);
  });
  return candidates;
}

// How many of the first candidates it takes to reach the share p of their mass.
std::size_t prefix_of_mass(const std::vector<Candidate>& candidates, float p) {
  const std::uint64_t target = top_p_target(p, total_mass(candidates));
  std::uint64_t running = 0;
  std::size_t needed = 0;
  while (needed < candidates.size() && running < target) running += candidates[needed++].mass;
  return needed;
}

// Keeps the locally typical ones; they stay in their order.
void keep_typical(std::vector<Candidate>& ranked, float typical_p) {
  std::uint64_t surprisal = 0;
  for (const Candidate& c : ranked) surprisal += surprisal_mass(exp_f32(c.z), c.z);
  const float mean = mean_z(surprisal, total_mass(ranked));
  std::sort(ranked.begin(), ranked.end(), [mean](const Candidate& a, const Candidate& b) {
    return ranks_before(typical_rank(a.z, mean), a.id, typical_rank(b.z, mean), b.id);
  });
  ranked.resize(prefix_of_mass(ranked, typical_p));
  std::sort(ranked.begin(), ranked.end(), [](const Candidate& a, const Candidate& b) {
    return ranks_before(a.z, a.id, b.z, b.id);
  });
}

// Applies the filters to candidates, best first; none if there was none.
void keep_filtered(std::vector<Candidate>& ranked, const FilterParams& filter) {
  if (ranked.empty()) return;
  const auto most = static_cast<std::size_t>(filter.top_k);
  if (most > 0 && ranked.size() > most) ranked.resize(most);
  if (filter.typical_p < 1.0f) keep_typical(ranked, filter.typical_p);
  if (filter.top_p < 1.0f) ranked.resize(prefix_of_mass(ranked, filter.top_p));
  if (filter.min_p > 0.0f) {
    const float floor = ranked.front().z + min_p_floor(filter.min_p);
    while (!ranked.empty() && ranked.back().z < floor) ranked.pop_back();
  }
}

}  // namespace

std::uint64_t RefBackend::distribution(Workspace&, const float* logits, std::int32_t vocab,
                                       const FilterParams& filter, const std::uint32_t* mask_bits,
                                       float* weight_out) const {
  std::fill(weight_out, weight_out + vocab, 0.0f);
  std::uint64_t total = 0;
  if (!filter.greedy()) {
    auto ranked = ranked_candidates(logits, vocab, filter.temperature, mask_bits);
    keep_filtered(ranked, filter);
    for (const Candidate& c : ranked) weight_out[c.id] = exp_f32(c.z);
    total = total_mass(ranked);
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

void RefBackend::adjust_logits(Workspace&, const float* logits, const DrawParams& draw,
                               const TokenCounts& counts, float* out) const {
  adjust_logits_on_host(logits, draw, counts, out);
}

float RefBackend::log_probabilities(Workspace&, const float* logits, std::int32_t vocab,
                                    TokenId token, std::int32_t count, TokenLogprob* top) const {
  SPECDEC_CHECK(token >= 0 && token < vocab && count >= 0 && count <= vocab, "token ", token,
                " and ", count, " likeliest of ", vocab);
  const float max = largest_logit(logits, vocab, nullptr);
  const std::uint64_t total = total_mass(ranked_candidates(logits, vocab, 1.0f, nullptr));
  std::vector<TokenLogprob> all;
  for (TokenId id = 0; id < vocab; ++id) {
    all.push_back({id, log_probability(logits[id], max, total)});
  }
  const float own = all[static_cast<std::size_t>(token)].logprob;
  // By logits: two that differ may have the same log-probability. A NaN counts as -infinity.
  std::sort(all.begin(), all.end(), [logits](const TokenLogprob& a, const TokenLogprob& b) {
    return ranks_before(comparable_logit(logits[a.id]), a.id, comparable_logit(logits[b.id]), b.id);
  });
  std::copy_n(all.begin(), count, top);
  return own;
}

void RefBackend::scatter_logits(Workspace&, std::int32_t count, const float* logits,
                                const TokenId* ids, std::int32_t vocab, float* out) const {
  std::fill_n(out, vocab, -std::numeric_limits<float>::infinity());
  for (std::int32_t i = 0; i < count; ++i) {
    SPECDEC_CHECK(ids[i] >= 0 && ids[i] < vocab, "token ", ids[i], " of ", vocab);
    out[ids[i]] = logits[i];
  }
}

std::vector<TokenProb> RefBackend::top_tokens(Workspace&, const DistributionView& dist,
                                              std::int32_t vocab, std::int32_t count) const {
  return top_tokens_on_host(dist, vocab, count);
}

Verdict RefBackend::verify(Workspace& ws, const VerifyInput& input) const {
  return verify_on_host(*this, ws, static_cast<RefWorkspace&>(ws).verify, input);
}

}  // namespace specdec
