// The seam between the decode loop and whatever proposes tokens. The verifier never asks who
// drafted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/backend.h"
#include "core/cancel.h"
#include "core/dtype.h"
#include "core/error.h"
#include "model/model_state.h"
#include "spec/proposal.h"

namespace specdec {

// What a drafter may look at. Proposals are a function of this alone, never of earlier rounds:
// after any accepts and rejections a proposal equals, bit for bit, that of a fresh drafter given
// the same tokens.
struct DraftContext {
  std::span<const TokenId> tokens;  // committed; the last one is pending
  DrawParams draw;                  // the sampling chain, rule and seed of the request
  const CancelFlag* cancel = nullptr;
  const TokenCounts* counts = nullptr;  // of `tokens`; null where draw.penalties is off
  // The target's own state, with rows for all tokens but the pending one. A drafter may append rows
  // to its cache, of whichever layers, and must cut it back to the old length before it returns:
  // rows past the committed length are provisional, and the verify pass overwrites those that it
  // reads, in every layer.
  ModelState* target = nullptr;
};

// An upper bound on every max_draft: what a verify pass is made for.
inline constexpr std::int32_t kMaxDraft = 64;

// The argument; throws InvalidArgument unless it is in [1, kMaxDraft].
inline std::int32_t checked_max_draft(std::int32_t max_draft) {
  if (max_draft < 1 || max_draft > kMaxDraft) {
    throw InvalidArgument(str("max_draft is ", max_draft, "; it must be 1 to ", kMaxDraft));
  }
  return max_draft;
}

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual const std::string& name() const = 0;

  // The most tokens it proposes in a round.
  virtual std::int32_t max_draft() const = 0;

  // Does at most one pass of work towards being ready for `context`; true when ready. Called before
  // the first proposal of a request until it says so, so that a long prompt is prefilled in steps.
  virtual bool prepare(const DraftContext& context) {
    (void)context;
    return true;
  }

  // At most `budget` (> 0) tokens to follow the pending one; empty = no proposal this round.
  virtual Proposal propose(const DraftContext& context, std::int32_t budget) = 0;

  // The round is over: `tokens` are now the committed ones. A private cache is cut back here to a
  // prefix of them; it catches up at the next propose().
  virtual void commit(std::span<const TokenId> tokens) { (void)tokens; }

  // Forgets everything (a new, unrelated text follows).
  virtual void reset() {}

  // Memory of weights and of caches with scratch, beyond the target's.
  virtual std::size_t weight_bytes() const { return 0; }
  virtual std::size_t cache_bytes() const { return 0; }
  virtual std::size_t scratch_bytes() const { return 0; }
};

}  // namespace specdec
