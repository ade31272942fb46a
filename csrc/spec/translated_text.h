// A text in the tokens of another vocabulary, for drafts with a tokenizer of their own.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/dtype.h"

namespace specdec {

// The draft's tokens of a piece of text given in the target's; `at_start`: the text begins here.
using TranslateTokens =
    std::function<std::vector<TokenId>(std::span<const TokenId> target_tokens, bool at_start)>;

// The text is translated in pieces of a fixed number of target tokens, so the result is a function
// of the text alone, and only the last piece, which still grows, is translated anew each time.
class TranslatedText {
 public:
  static constexpr std::size_t kPieceTokens = 64;

  explicit TranslatedText(TranslateTokens translate) : translate_(std::move(translate)) {}

  // The whole text in draft tokens; valid until the next call.
  std::span<const TokenId> update(std::span<const TokenId> target_tokens);

 private:
  TranslateTokens translate_;
  std::vector<TokenId> seen_;        // target tokens that `draft_` stands for
  std::vector<std::size_t> starts_;  // of the pieces, in `draft_`
  std::vector<TokenId> draft_;
};

}  // namespace specdec
