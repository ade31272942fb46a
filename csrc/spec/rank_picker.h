// The likeliest tokens of rows of logits, for trees whose nodes are picked by rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "spec/drafter.h"

namespace specdec {

class RankPicker {
 public:
  // Before the first pick of a proposal. in_place: the tokens stay in the backend's memory (see
  // tokens_in_place.h), and with them their probabilities: 0 is said.
  void begin(bool in_place);

  // At most `count`, with the request's filters: a token that they remove can never stand. At
  // temperature 0, where one token would be left, without filters. In place always `count`, of
  // which those that the filters remove are none. logits [>= vocab], backend memory
  std::vector<TokenProb> pick(const DraftContext& context, const Backend& backend,
                              Workspace& workspace, const float* logits, std::int32_t vocab,
                              std::int32_t count);

  // Where tokens in place lie; null where they are known.
  const DrawnToken* drawn() const;
  std::size_t bytes() const;

 private:
  bool in_place_ = false;
  std::int32_t used_ = 0;            // of drawn_, in this proposal
  std::unique_ptr<Buffer> weights_;  // [vocab]
  std::unique_ptr<Buffer> drawn_;    // [kMaxDraft * kMaxDraft]: ranks of each node at most
};

}  // namespace specdec
