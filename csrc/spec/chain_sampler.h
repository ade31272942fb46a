// Draws the tokens of a drafted chain with the request's whole sampling chain but for a grammar's
// mask, each with the prefix that it would have, and keeps the distributions they were drawn from:
// what drafters with logits of their own share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "spec/drafter.h"

namespace specdec {

class ChainSampler {
 public:
  // Appends the next token to the chain `proposal`, drawn from logits [>= vocab] in backend memory.
  // Under `coupled` with the target's own noise, so that both often draw the same token; under
  // `rejection` with noise of its own, and with the distribution for the acceptance rule.
  // backend: of the logits. Where the target's is another, whose memory is not the same, the
  // distribution is copied there.
  // in_place: the token stays there, and the proposal says where; see tokens_in_place.h.
  // False, with nothing drawn, if the likeliest token is less likely than min_confidence: decided
  // before anything is drawn, for a chain that ended because of what it drew would be biased.
  bool draw(const DraftContext& context, const Backend& backend, Workspace& workspace,
            const float* logits, Proposal& proposal, bool in_place, float min_confidence = 0.0f);

  // Where tokens in place lie; null before the first one.
  const DrawnToken* drawn() const;

  std::size_t bytes() const;

 private:
  const float* for_target(const DraftContext& context, const Backend& backend, Workspace& workspace,
                          const float* weights, std::size_t index);
  const float* adjusted(const DrawParams& draw, const Backend& backend, Workspace& workspace,
                        const float* logits);

  std::vector<std::unique_ptr<Buffer>>
      weights_;  // [longest chain so far][vocab]: what each token was drawn from
  std::vector<std::unique_ptr<Buffer>> target_weights_;  // the same on the target's backend
  std::unique_ptr<Buffer> drawn_;                        // [kMaxDraft] DrawnToken
  TokenCounts counts_;                                   // of the text and the chain drafted so far
  std::unique_ptr<Buffer> adjusted_;                     // [vocab] logits with penalties and bias
};

}  // namespace specdec
