#include "backend/token_counts.h"

#include <algorithm>

namespace specdec {

TokenCounts::TokenCounts(std::span<const TokenId> prompt) {
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  entries_.reserve(ids.size());
  for (const TokenId id : ids) entries_.push_back({id, 0});
}

void TokenCounts::add_output(TokenId token) {
  const auto place =
      std::lower_bound(entries_.begin(), entries_.end(), token,
                       [](const TokenCount& entry, TokenId id) { return entry.id < id; });
  if (place != entries_.end() && place->id == token) {
    ++place->output;
  } else {
    entries_.insert(place, {token, 1});
  }
}

}  // namespace specdec
