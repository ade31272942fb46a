// The seam between the decode loop and whatever proposes tokens. The verifier never asks who
// drafted.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/cancel.h"
#include "core/dtype.h"
#include "core/error.h"
#include "model/model_state.h"
#include "spec/hidden_rows.h"
#include "spec/proposal.h"

namespace specdec {

// What a drafter may look at. Proposals are a function of this alone, never of earlier rounds:
// after any accepts and rejections a proposal equals, bit for bit, that of a fresh drafter given
// the same tokens and hidden rows.
struct DraftContext {
  std::span<const TokenId> tokens;  // committed; the last one is pending
  DrawParams draw;                  // the sampling chain, rule and seed of the request
  const CancelFlag* cancel = nullptr;
  const TokenCounts* counts = nullptr;  // of `tokens`; null where draw.penalties is off
  // May tokens of a proposal stay in the target's memory, unknown to the host (Proposal::drawn)?
  bool unknown_tokens = false;
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

  // Whether the controller decides how much of it is used in each round. If not, as much is
  // proposed as it can, whenever it can: then the draft lengths do not depend on the clock.
  bool adaptive() const { return adaptive_; }
  void set_adaptive(bool adaptive) { adaptive_ = adaptive; }

  // Whether proposing takes passes of a model. One that does not is asked in every round: it costs
  // next to nothing, and what it would have proposed tells how often it is right.
  virtual bool runs_model() const { return true; }

  // Does at most one pass of work towards being ready for `context`; true when ready. Called before
  // the first proposal of a request until it says so, so that a long prompt is prefilled in steps.
  // From then on the text only grows until the request ends.
  virtual bool prepare(const DraftContext& context) {
    (void)context;
    return true;
  }

  // Hidden states of the target that this drafter is fed with, see PassOptions::capture; none: it
  // needs no hidden rows.
  virtual std::vector<std::int32_t> hidden_layers() const { return {}; }

  // How many of the first rows of a text it can do without: it has had them, or does not need them.
  // The target computes the others again if they are cached, so that they can be handed out.
  virtual std::int32_t hidden_rows_held(std::span<const TokenId> tokens) const {
    return static_cast<std::int32_t>(tokens.size());
  }

  // Hidden states of rows that a prefill pass or a round has just added to the target's cache. In a
  // request every row from hidden_rows_held() on arrives once, in order.
  virtual void take_hidden(const DraftContext& context, const HiddenRows& hidden) {
    (void)context;
    (void)hidden;
  }

  // At most `budget` (> 0) tokens to follow the pending one; empty = no proposal this round.
  virtual Proposal propose(const DraftContext& context, std::int32_t budget) = 0;

  // The tokens of this round's proposal, whoever made it, are known now: before, those in
  // Proposal::drawn were not. Called ahead of commit().
  virtual void learn_tokens(const Proposal& proposal) { (void)proposal; }

  // The round is over, and its hidden rows are handed out: `tokens` are now the committed ones. A
  // private cache is cut back here to a prefix of them; it catches up at the next propose().
  virtual void commit(std::span<const TokenId> tokens) { (void)tokens; }

  // The request is over, with these tokens; called once.
  virtual void end(std::span<const TokenId> tokens) { (void)tokens; }

  // Forgets everything (a new, unrelated text follows).
  virtual void reset() {}

  // Memory of weights and of caches with scratch, beyond the target's.
  virtual std::size_t weight_bytes() const { return 0; }
  virtual std::size_t cache_bytes() const { return 0; }
  virtual std::size_t scratch_bytes() const { return 0; }

 private:
  bool adaptive_ = false;
};

}  // namespace specdec
