// The verify walk that host backends share: from the pending token down the proposal's tree, one
// row of target logits at a time. Lazy: the distribution of a row is computed only when the walk
// reaches it, so a rejection at the first node costs one row. Called by Backend::verify.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace specdec {

// mask_bits [ceil(vocab / 32)]: bit set = allowed; null allows everything.
inline bool is_allowed(const std::uint32_t* mask_bits, TokenId id) {
  return mask_bits == nullptr || ((mask_bits[id >> 5] >> (static_cast<unsigned>(id) & 31u)) & 1u);
}

// The allowed token with the largest logit, ties to the lowest id; NaN counts as -infinity. The
// lowest allowed id where none is larger than -infinity, 0 where none is allowed. logits [vocab]
TokenId argmax_token(const float* logits, std::int32_t vocab, const std::uint32_t* mask_bits);

// Backend::adjust_logits of host backends.
void adjust_logits_on_host(const float* logits, const DrawParams& draw, const TokenCounts& counts,
                           float* out);

// What a walk needs beside its input: kept in a workspace, so that rounds allocate nothing.
struct VerifyScratch {
  std::vector<float> adjusted;        // [vocab] a row of logits with penalties and bias
  std::vector<float> weight;          // [vocab] the target distribution of a row
  std::vector<std::uint64_t> shares;  // [vocab] what siblings left of it
  TokenCounts counts;                 // of the text and the path walked so far

  std::size_t bytes() const {
    return (adjusted.capacity() + weight.capacity()) * sizeof(float) +
           shares.capacity() * sizeof(std::uint64_t) + counts.entries().size() * sizeof(TokenCount);
  }
};

// Walks the tree and applies the acceptance rule of `input.draw`; at temperature 0 a node stands if
// it is the argmax.
Verdict verify_on_host(const Backend& backend, Workspace& workspace, VerifyScratch& scratch,
                       const VerifyInput& input);

}  // namespace specdec
