// One generation request: what was asked for, and how it ended.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "engine/mask_source.h"

namespace specdec {

struct RequestParams {
  DrawParams draw;  // the sampling chain, acceptance rule, seed; `vocab`, `bias` set by the engine
  std::vector<LogitBias> logit_bias;  // each id once
  std::int32_t logprobs = -1;         // so many likeliest tokens with each emitted one; < 0: none
  std::int32_t max_tokens = -1;       // < 0: to the end of the context
  std::vector<TokenId> stop_tokens;   // end-of-generation ids
  std::shared_ptr<MaskSource> mask;   // or null
  std::int32_t prefill_chunk = 512;   // tokens per prefill pass
  // For benchmarks, in [0, 1]: drafted tokens stand with this probability whatever the target
  // says, so the text is meaningless; < 0: off. No ordinary request sets it.
  double synthetic_acceptance = -1.0;
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength, kContext, kCancelled };

// "stop", "length", "context", "cancelled"; "" for kNone
inline const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kNone:
      break;
  }
  return "";
}

// The target's own log-probabilities at the position of an emitted token.
struct PositionLogprobs {
  float logprob = 0.0f;           // of the emitted token
  std::vector<TokenLogprob> top;  // the likeliest, best first
};

// What one step brought: a prefill pass brings progress, a round brings tokens.
struct StepResult {
  double prefill_progress = 0.0;  // share of the prompt that is in the caches; 1 in a round
  std::vector<TokenId> tokens;    // newly committed
  std::vector<PositionLogprobs> logprobs;  // one per token, if asked for
  std::string source;                      // the drafter's name, if `drafted` > 0
  std::int32_t drafted = 0;  // the first `drafted` of `tokens` were proposed by `source`
  FinishReason finish = FinishReason::kNone;
};

}  // namespace specdec
