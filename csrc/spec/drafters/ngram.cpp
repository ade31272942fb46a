#include "spec/drafters/ngram.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {
namespace {

std::uint64_t hash_tokens(std::span<const TokenId> tokens) {
  std::uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a over whole ids
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace

NgramDrafter::NgramDrafter(std::int32_t max_draft, std::int32_t min_ngram, std::int32_t max_ngram)
    : max_draft_(checked_max_draft(max_draft)), min_ngram_(min_ngram), max_ngram_(max_ngram) {
  if (min_ngram < 1 || max_ngram < min_ngram || max_ngram > 64) {
    throw InvalidArgument(str("min_ngram ", min_ngram, " and max_ngram ", max_ngram,
                              " must satisfy 1 <= min_ngram <= max_ngram <= 64"));
  }
  by_length_.resize(static_cast<std::size_t>(max_ngram - min_ngram + 1));
}

void NgramDrafter::reset() {
  indexed_.clear();
  for (auto& map : by_length_) map.clear();
}

// Indexes the n-grams that end before the last token: those have a continuation.
void NgramDrafter::index_up_to(std::span<const TokenId> tokens) {
  // Committed text only grows within a request; anything else starts over. The last indexed token
  // is compared as well as the length: a request that shares no prefix was announced by reset().
  if (indexed_.size() + 1 > tokens.size() ||
      !std::equal(indexed_.begin(), indexed_.end(), tokens.begin())) {
    reset();
  }
  for (std::size_t end = indexed_.size() + 1; end < tokens.size(); ++end) {
    indexed_.push_back(tokens[end - 1]);
    for (std::int32_t n = min_ngram_; n <= max_ngram_ && static_cast<std::size_t>(n) <= end; ++n) {
      const std::size_t length = static_cast<std::size_t>(n);
      by_length_[static_cast<std::size_t>(n - min_ngram_)]
                [hash_tokens(tokens.subspan(end - length, length))] =
                    static_cast<std::int32_t>(end);
    }
  }
}

// The index of the token that followed the latest earlier occurrence of the longest known suffix,
// of `matched` tokens; -1 if there is none.
std::int32_t NgramDrafter::find_continuation(std::span<const TokenId> tokens,
                                             std::int32_t& matched) const {
  for (std::int32_t n = max_ngram_; n >= min_ngram_; --n) {
    const std::size_t length = static_cast<std::size_t>(n);
    if (length >= tokens.size()) continue;
    const auto suffix = tokens.last(length);
    const auto& map = by_length_[static_cast<std::size_t>(n - min_ngram_)];
    const auto found = map.find(hash_tokens(suffix));
    if (found == map.end()) continue;
    const auto seen = tokens.subspan(static_cast<std::size_t>(found->second) - length, length);
    if (!std::equal(seen.begin(), seen.end(), suffix.begin())) continue;  // a collision
    matched = n;
    return found->second;
  }
  return -1;
}

Proposal NgramDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  index_up_to(context.tokens);
  std::int32_t matched = 0;
  std::int32_t next = find_continuation(context.tokens, matched);
  if (next < 0) return proposal;
  // Grows with the match; what it is worth the controller measures.
  const float confidence = static_cast<float>(matched) / static_cast<float>(matched + 1);
  const std::int32_t count = std::min(budget, max_draft_);
  const std::int32_t text = static_cast<std::int32_t>(context.tokens.size());
  for (; proposal.size() < count; ++next) {
    // Past the end of the text the copy continues with what it has copied: a loop repeats itself.
    const TokenId token = next < text ? context.tokens[static_cast<std::size_t>(next)]
                                      : proposal.tokens[static_cast<std::size_t>(next - text)];
    proposal.push_chain(token, -1, confidence);
  }
  return proposal;
}

}  // namespace specdec
