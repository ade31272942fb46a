// What a request did and how long it took: counted by the decode loop, read by the bindings.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "spec/drafter.h"

namespace specdec {

struct DecodeStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;  // of the prompt, found in the cache
  std::int64_t generated = 0;
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  // [i]: nodes proposed / accepted at depth i of a proposal
  std::array<std::int64_t, kMaxDraft> drafted_at{};
  std::array<std::int64_t, kMaxDraft> accepted_at{};
  std::array<std::int64_t, kMaxDraft + 1> draft_lengths{};  // [m]: rounds with m drafted tokens

  double prompt_ms = 0.0;        // prefill of the target and of the drafters
  double draft_prompt_ms = 0.0;  // the drafters' share of it
  double decode_ms = 0.0;        // all rounds
  double draft_ms = 0.0;         // proposing (on a device: its time), part of decode_ms
  double verify_ms = 0.0;        // verify passes and acceptance, part of decode_ms

  // The first round, whose tokens mark the start of the clock for tokens per second.
  std::int64_t first_round_tokens = 0;
  double first_round_ms = 0.0;
  std::vector<float> plain_round_ms;  // rounds without a proposal: what plain decoding costs
  // What the controller takes a round without a proposal to cost, from this and earlier requests;
  // 0 where it never saw one.
  double plain_ms_estimate = 0.0;
};

}  // namespace specdec
