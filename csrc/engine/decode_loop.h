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
#include "spec/drafter.h"
#include "spec/stats.h"

namespace specdec {

class DecodeLoop {
 public:
  // Starts a request on `session`. Drafters are asked in order; the first proposal is taken.
  DecodeLoop(Session& session, std::vector<std::shared_ptr<Drafter>> drafters,
             std::span<const TokenId> prompt, RequestParams params, const CancelFlag& cancel);

  DecodeLoop(const DecodeLoop&) = delete;  // params_ refers to itself
  DecodeLoop& operator=(const DecodeLoop&) = delete;

  // At most one pass of the target: a prefill chunk or a round. Once a result has a finish reason,
  // further steps return that reason and no tokens.
  StepResult step();

  // Ends the request after its first `count` generated tokens (a stop string was completed there).
  void cut_output(std::int32_t count, FinishReason reason);

  FinishReason finish() const { return finish_; }
  const DecodeStats& stats() const { return stats_; }

 private:
  StepResult prefill_step();
  StepResult round();
  std::int32_t prepare_capture(std::span<const TokenId> prompt);
  void hand_out_hidden();
  Proposal propose();
  Verdict verify(const Proposal& proposal);
  void commit(const Proposal& proposal, const Verdict& verdict);
  StepResult collect_output(std::int32_t before, const Proposal& proposal, const Verdict& verdict);
  void prepare_draw(std::span<const TokenId> prompt);
  std::vector<PositionLogprobs> logprobs(std::span<const TokenId> added, const Verdict& verdict);
  void count_round(const Proposal& proposal, const Verdict& verdict);
  DraftContext draft_context() const;
  StepResult finished(FinishReason reason);

  Session& session_;
  std::vector<std::shared_ptr<Drafter>> drafters_;
  RequestParams params_;
  TokenCounts counts_;  // of the committed text, where penalties need them
  const CancelFlag& cancel_;
  std::int32_t prompt_size_ = 0;
  std::int32_t size_limit_ = 0;                      // tokens of prompt and output at most
  std::size_t prepared_drafters_ = 0;                // the first so many have prefilled the prompt
  FinishReason limit_reason_ = FinishReason::kNone;  // what reaching size_limit_ means
  FinishReason finish_ = FinishReason::kNone;
  DecodeStats stats_;
};

}  // namespace specdec
