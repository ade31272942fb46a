// Which tokens stand in a text, and how often each in its output: what the penalties look at. Host.
#pragma once

#include <span>
#include <vector>

#include "backend/sampling_rule.h"
#include "core/dtype.h"

namespace specdec {

class TokenCounts {
 public:
  TokenCounts() = default;

  // Of a text that is only a prompt so far.
  explicit TokenCounts(std::span<const TokenId> prompt);

  // One more token of the output.
  void add_output(TokenId token);

  // Every token of the text once, ascending ids.
  std::span<const TokenCount> entries() const { return entries_; }

 private:
  std::vector<TokenCount> entries_;
};

}  // namespace specdec
