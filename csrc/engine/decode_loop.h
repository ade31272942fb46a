// THE decode loop: prefill in chunks, then rounds of propose -> one verify pass -> accept -> commit
// -> rollback. Plain decoding is the same loop with empty proposals, so the baseline is never a
// second path.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cancel.h"
#include "engine/request.h"
#include "engine/session.h"
#include "spec/arbiter.h"
#include "spec/drafter.h"
#include "spec/stats.h"

namespace specdec {

// Who drafts in a request, and who decides how much.
struct Drafting {
  std::vector<std::shared_ptr<Drafter>> drafters;
  std::vector<std::int64_t> keys;  // [drafters] what the controller knows each by
  Controller* controller;
};

class DecodeLoop {
 public:
  // Starts a request on `session`, which with the controller must outlive it.
  DecodeLoop(Session& session, Drafting drafting, std::span<const TokenId> prompt,
             RequestParams params, const CancelFlag& cancel);

  DecodeLoop(const DecodeLoop&) = delete;  // params_ refers to itself
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  // At most one pass of the target: a prefill chunk or a round. Once a result has a finish reason,
  // further steps return that reason and no tokens.
  StepResult step();

  // Ends the request after its first `count` generated tokens (a stop string was completed there).
  void cut_output(std::int32_t count, FinishReason reason);

  // Tells the drafters that the request is over. Further steps must not follow.
  void end();

  FinishReason finish() const { return finish_; }
  const DecodeStats& stats() const { return stats_; }

 private:
  StepResult prefill_step();
  StepResult round();
  std::int32_t prepare_capture(std::span<const TokenId> prompt);
  void hand_out_hidden();
  Proposal propose();
  Verdict verify(const Proposal& proposal);
  void learn_tokens(Proposal& proposal, const Verdict& verdict);
  void accept_synthetically(const Proposal& proposal, Verdict& verdict) const;
  void commit(const Proposal& proposal, const Verdict& verdict);
  StepResult collect_output(std::int32_t before, const Proposal& proposal, const Verdict& verdict);
  void prepare_draw(std::span<const TokenId> prompt);
  std::vector<PositionLogprobs> logprobs(std::span<const TokenId> added, const Verdict& verdict);
  void count_round(const Proposal& proposal, const StepResult& result);
  void uncount(std::int32_t removed);
  DraftContext draft_context() const;
  StepResult finished(FinishReason reason);

  Session& session_;
  std::vector<std::shared_ptr<Drafter>> drafters_;
  DraftArbiter arbiter_;
  RequestParams params_;
  TokenCounts counts_;  // of the committed text, where penalties need them
  const CancelFlag& cancel_;
  std::int32_t prompt_size_ = 0;
  std::int32_t size_limit_ = 0;                      // tokens of prompt and output at most
  std::size_t prepared_drafters_ = 0;                // the first so many have prefilled the prompt
  FinishReason limit_reason_ = FinishReason::kNone;  // what reaching size_limit_ means
  FinishReason finish_ = FinishReason::kNone;
  bool ended_ = false;
  std::int32_t last_added_ = 0, last_accepted_ = 0;  // tokens of the last round, drafted ones
  DecodeStats stats_;
};

}  // namespace specdec
