// The likeliest tokens of a row of logits, for trees whose nodes are picked by rank.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace specdec {

// At most `count`, with the request's filters: a token that they remove can never stand. At
// temperature 0, where one token would be left, without filters. logits [>= vocab] and
// weights [vocab], which is overwritten, are backend memory.
inline std::vector<TokenProb> likeliest_tokens(const Backend& backend, Workspace& ws,
                                               const float* logits, std::int32_t vocab,
                                               const FilterParams& wanted, std::int32_t count,
                                               float* weights) {
  const FilterParams filter = wanted.greedy() ? FilterParams{} : wanted;
  const std::uint64_t total = backend.distribution(ws, logits, vocab, filter, nullptr, weights);
  return backend.top_tokens(ws, {weights, total}, vocab, count);
}

}  // namespace specdec
