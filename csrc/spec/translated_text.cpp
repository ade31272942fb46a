#include "spec/translated_text.h"

#include <algorithm>

namespace specdec {

std::span<const TokenId> TranslatedText::update(std::span<const TokenId> target_tokens) {
  const std::size_t limit = std::min(seen_.size(), target_tokens.size());
  std::size_t common = 0;
  while (common < limit && seen_[common] == target_tokens[common]) ++common;
  if (common == seen_.size() && common == target_tokens.size()) return draft_;
  const std::size_t kept = common / kPieceTokens;  // whole pieces
  if (kept < starts_.size()) {
    draft_.resize(starts_[kept]);
    starts_.resize(kept);
  }
  for (std::size_t first = kept * kPieceTokens; first < target_tokens.size();
       first += kPieceTokens) {
    const std::size_t size = std::min(kPieceTokens, target_tokens.size() - first);
    const std::vector<TokenId> piece = translate_(target_tokens.subspan(first, size), first == 0);
    starts_.push_back(draft_.size());
    draft_.insert(draft_.end(), piece.begin(), piece.end());
  }
  seen_.assign(target_tokens.begin(), target_tokens.end());
  return draft_;
}

}  // namespace specdec
