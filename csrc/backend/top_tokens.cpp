#include "backend/top_tokens.h"

#include <algorithm>

namespace specdec {

std::vector<TokenProb> top_tokens_on_host(const DistributionView& dist, std::int32_t vocab,
                                          std::int32_t count) {
  // The best so far, best first. Ids ascend, so of equal weights the one already there stays ahead.
  std::vector<TokenId> best;
  const auto wanted = static_cast<std::size_t>(std::max(count, 0));
  if (wanted == 0) return {};
  float least = 0.0f;  // what a token must exceed to enter
  for (TokenId id = 0; id < vocab; ++id) {
    const float weight = dist.weight[id];
    if (!(weight > least) || weight_to_mass(weight) == 0) continue;
    const auto place = std::find_if(best.begin(), best.end(),
                                    [&](TokenId other) { return dist.weight[other] < weight; });
    best.insert(place, id);
    if (best.size() > wanted) best.pop_back();
    if (best.size() == wanted) least = dist.weight[best.back()];
  }
  std::vector<TokenProb> top;
  for (const TokenId id : best) top.push_back({id, probability(dist, id)});
  return top;
}

void Backend::rank_tokens(Workspace& ws, const float* logits, std::int32_t vocab,
                          const FilterParams& filter, std::int32_t count, float* weight_out,
                          DrawnToken* out) const {
  const std::uint64_t total = distribution(ws, logits, vocab, filter, nullptr, weight_out);
  std::fill_n(out, count, DrawnToken{-1, 0});
  for (const TokenProb& one : top_tokens(ws, {weight_out, total}, vocab, count)) {
    *out++ = {one.id, total};
  }
}

}  // namespace specdec
