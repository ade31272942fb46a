// One conversation with one target model: its tokens and its cache.
//
// Invariants, checked in debug builds (SPECDEC_DCHECK):
//  1. Between rounds tokens.size() == cache.length + 1: the last token is pending. (During prefill
//  the
//     cache is shorter.)
//  2. After a verify pass over m nodes the cache has n + 1 + m rows, after accepting `a` exactly
//     n + 1 + a.
//  3. Between rounds a drafter's private cache is a prefix of the committed tokens (drafter.h).
//  4. Keeping an accepted tree path is a pure row gather: positions are base + depth.
//  5. A stop token or a limit inside an accepted run cuts tokens and cache together, in cut().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/model_state.h"
#include "spec/hidden_rows.h"
#include "spec/proposal.h"

namespace specdec {

class Session {
 public:
  Session(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type);

  const Model& model() const { return state_.model(); }
  ModelState& state() { return state_; }
  const ModelState& state() const { return state_; }
  std::span<const TokenId> tokens() const { return tokens_; }
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t n_ctx() const { return state_.n_ctx(); }

  // Starts a new text. Cached rows of a common prefix are reused; at least the last token is
  // evaluated again, and no more than `reusable` rows are reused. Returns the number of reused
  // rows. Throws ContextFullError if no token could follow.
  std::int32_t begin(std::span<const TokenId> prompt, std::int32_t reusable);

  // The hidden states that passes keep from now on (PassOptions::capture); none at first.
  void capture(std::vector<std::int32_t> layers) { capture_ = std::move(layers); }

  // The prompt tokens that are not in the cache yet, the last (pending) one excepted.
  std::span<const TokenId> unfilled() const;

  // Prefills at most `count` of them; false if cancelled.
  bool prefill(std::int32_t count, const CancelFlag* cancel);

  // The verify pass over the pending token and the proposal; logits [m + 1, V] in state(); false
  // if cancelled.
  bool run_proposal(const Proposal& proposal, const CancelFlag* cancel);

  // Commits the accepted path and the token after it; the rest is rolled back.
  void accept(const Proposal& proposal, std::span<const std::int32_t> path, TokenId next);

  // The kept hidden states of the last prefill() or accept(), of the rows that are still in the
  // cache.
  HiddenRows hidden_rows() const;

  // Forgets all but the first `size` (> 0) tokens.
  void cut(std::int32_t size);

  // Drops rows that no committed token stands for: what an interrupted pass left behind.
  void rollback();

  // Logits of tokens [first, tokens.size()), [count, V] host memory; the session then holds
  // `tokens`. The pass has at most 64 rows with logits: call it chunk by chunk.
  void logits(std::span<const TokenId> tokens, std::int32_t first, float* host_out);

 private:
  ModelState state_;
  std::vector<TokenId> tokens_;  // committed; the last one is pending
  std::vector<std::int32_t> capture_;
  std::int32_t pass_base_ = 0;           // cached rows before the last pass
  std::vector<std::int32_t> pass_rows_;  // its rows that were kept, ascending
};

}  // namespace specdec
