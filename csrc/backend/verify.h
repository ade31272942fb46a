// The verify walk that host backends share: from the pending token down the proposal's tree, one
// row of target logits at a time. Lazy: the distribution of a row is computed only when the walk
// reaches it, so a rejection at the first node costs one row. Called by Backend::verify.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace specdec {

// mask_bits [ceil(vocab / 32)]: bit set = allowed; null allows everything.
inline bool is_allowed(const std::uint32_t* mask_bits, TokenId id) {
  return mask_bits == nullptr || ((mask_bits[id >> 5] >> (static_cast<unsigned>(id) & 31u)) & 1u);
}

// The allowed token with the largest logit, ties to the lowest id; NaN counts as -infinity. The
// lowest allowed id where none is larger than -infinity, 0 where none is allowed. logits [vocab]
TokenId argmax_token(const float* logits, std::int32_t vocab, const std::uint32_t* mask_bits);

// Walks the tree and applies the acceptance rule of `input.draw`; at temperature 0 a node stands if
// it is the argmax. Only prob_rows' upper bound is not checked here: the caller knows the rows.
Verdict verify_on_host(const Backend& backend, Workspace& workspace, const VerifyInput& input);

}  // namespace specdec
