#include "text/byte_pairs.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "core/error.h"
#include "text/merge_lists.h"

namespace specdec {
namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
// Words of up to this many symbols are merged by looking for the best pair each time: for so few
// that beats a heap.
constexpr std::size_t kShortWord = 48;

std::size_t character_bytes(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The code point of a character of one or two bytes, else one that is not small.
std::size_t small_code_point(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  if (character.size() == 2) return (byte(0) & 0x1Fu) << 6 | (byte(1) & 0x3Fu);
  return 0x800;
}

TextTable table_of(const std::vector<std::string>& tokens, const std::vector<TokenId>& pieces) {
  TextTable table(pieces.size());
  for (const TokenId id : pieces) table.insert(tokens[static_cast<std::size_t>(id)], id);
  return table;
}

}  // namespace

BytePairs::BytePairs(std::vector<std::string> tokens, TextTable table,
                     const std::vector<MergePair>& pairs)
    : tokens_(std::move(tokens)), table_(std::move(table)), merges_(pairs.size()) {
  std::uint32_t rank = 0;
  for (const MergePair& pair : pairs) {
    merges_.insert(pair.left, pair.right, {rank++, pair.result});
  }
  may_cut_ = cuts_are_safe(pairs);
  byte_ids_.fill(kNoToken);
  for (std::size_t code = 0; code < character_ids_.size(); ++code) {
    const char one = static_cast<char>(code);
    const char two[] = {static_cast<char>(0xC0 | code >> 6),
                        static_cast<char>(0x80 | (code & 0x3F))};
    character_ids_[code] = find(code < 0x80 ? std::string_view(&one, 1)  //
                                            : std::string_view(two, sizeof two));
  }
}

// Whether no merge joins a space mark to something other than space marks on its left.
bool BytePairs::cuts_are_safe(const std::vector<MergePair>& pairs) const {
  const auto text = [&](TokenId id) -> const std::string& {
    return tokens_[static_cast<std::size_t>(id)];
  };
  return find(kSpaceMark) != kNoToken &&
         std::none_of(pairs.begin(), pairs.end(), [&](const MergePair& pair) {
           return text(pair.right).starts_with(kSpaceMark) &&
                  !text(pair.left).ends_with(kSpaceMark);
         });
}

BytePairs BytePairs::from_merges(std::vector<std::string> tokens,
                                 const std::vector<TokenId>& pieces,
                                 const std::vector<std::string>& merges, bool ignore_merges) {
  TextTable table = table_of(tokens, pieces);
  const std::vector<MergePair> pairs = parse_merges(tokens, table, merges);
  BytePairs made(std::move(tokens), std::move(table), pairs);
  made.ignore_merges_ = ignore_merges;
  return made;
}

BytePairs BytePairs::from_scores(std::vector<std::string> tokens,
                                 const std::vector<TokenId>& pieces,
                                 const std::vector<float>& scores, const std::vector<TokenId>& runs,
                                 const std::array<TokenId, 256>& byte_ids, TokenId unknown) {
  std::vector<TokenId> all = runs;
  all.insert(all.end(), pieces.begin(), pieces.end());
  TextTable table = table_of(tokens, all);
  const std::vector<MergePair> pairs = derive_merges(tokens, table, pieces, scores, runs);
  BytePairs made(std::move(tokens), std::move(table), pairs);
  made.byte_ids_ = byte_ids;
  made.unknown_ = unknown;
  return made;
}

void BytePairs::encode(std::string_view word, std::vector<TokenId>& ids) const {
  if (ignore_merges_) {
    const TokenId whole = find(word);
    if (whole != kNoToken) {
      ids.push_back(whole);
      return;
    }
  }
  std::vector<TokenId> symbols = characters(word);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void BytePairs::encode_text(std::string_view text, std::vector<TokenId>& ids) const {
  std::size_t start = 0;
  while (start < text.size()) {
    std::size_t end = text.size();
    if (may_cut_) {
      // From the first mark after something else.
      std::size_t at = start;
      while (text.substr(at, kSpaceMark.size()) == kSpaceMark) at += kSpaceMark.size();
      end = std::min(text.find(kSpaceMark, at), text.size());
    }
    encode(text.substr(start, end - start), ids);
    start = end;
  }
}

// The ids of a word's characters.
std::vector<TokenId> BytePairs::characters(std::string_view word) const {
  std::vector<TokenId> symbols;
  symbols.reserve(word.size());
  for (std::size_t at = 0; at < word.size();) {
    const std::string_view character = word.substr(at, character_bytes(word[at]));
    const std::size_t code = small_code_point(character);
    const TokenId id = code < character_ids_.size() ? character_ids_[code] : find(character);
    if (id != kNoToken) {
      symbols.push_back(id);
    } else {
      append_unknown(character, symbols);
    }
    at += character.size();
  }
  return symbols;
}

void BytePairs::append_unknown(std::string_view character, std::vector<TokenId>& symbols) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
  if (std::none_of(character.begin(), character.end(),
                   [&](char byte) { return id_of(byte) == kNoToken; })) {
    for (const char byte : character) symbols.push_back(id_of(byte));
  } else if (unknown_ != kNoToken && (symbols.empty() || symbols.back() != unknown_)) {
    symbols.push_back(unknown_);
  }
}

void BytePairs::merge_short(std::vector<TokenId>& symbols) const {
  std::array<Merge, kShortWord> merges;  // of each symbol with the next
  std::size_t count = symbols.size();
  const auto look_up = [&](std::size_t i) {
    const Merge* found = merges_.find(symbols[i], symbols[i + 1]);
    merges[i] = found == nullptr ? Merge{kNoRank, kNoToken} : *found;
  };
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const auto best =
        std::min_element(merges.begin(), merges.begin() + static_cast<std::ptrdiff_t>(count - 1),
                         [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
    if (best->rank == kNoRank) break;
    const auto i = static_cast<std::size_t>(best - merges.begin());
    symbols[i] = best->result;
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(i + 2),
              symbols.begin() + static_cast<std::ptrdiff_t>(count),
              symbols.begin() + static_cast<std::ptrdiff_t>(i + 1));
    std::copy(best + 1, merges.begin() + static_cast<std::ptrdiff_t>(count - 1), best);
    --count;
    if (i + 1 < count) look_up(i);
    if (i > 0) look_up(i - 1);
  }
  symbols.resize(count);
}

void BytePairs::merge_long(std::vector<TokenId>& symbols) const {
  // A linked list over the symbols; a symbol that was merged into its left neighbour is kNoToken.
  const auto count = static_cast<std::uint32_t>(symbols.size());
  std::vector<std::uint32_t> next(count), previous(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;  // of the first: beyond count
  }
  // Rank in the upper half, position in the lower: the least is the best and leftmost.
  std::vector<std::uint64_t> found;
  const auto merge_at = [&](std::uint32_t i) {
    return next[i] < count ? merges_.find(symbols[i], symbols[next[i]]) : nullptr;
  };
  const auto entry = [](const Merge& merge, std::uint32_t i) {
    return std::uint64_t{merge.rank} << 32 | i;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    if (const Merge* merge = merge_at(i)) found.push_back(entry(*merge, i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue(
      std::greater<>{}, std::move(found));
  while (!queue.empty()) {
    const std::uint64_t top = queue.top();
    queue.pop();
    const auto i = static_cast<std::uint32_t>(top);
    if (symbols[i] == kNoToken) continue;
    const Merge* merge = merge_at(i);
    if (merge == nullptr || entry(*merge, i) != top) continue;  // a neighbour has changed since
    const std::uint32_t gone = next[i];
    symbols[i] = merge->result;
    symbols[gone] = kNoToken;
    next[i] = next[gone];
    if (next[i] < count) previous[next[i]] = i;
    if (const Merge* right = merge_at(i)) queue.push(entry(*right, i));
    if (previous[i] < count) {
      if (const Merge* left = merge_at(previous[i])) queue.push(entry(*left, previous[i]));
    }
  }
  std::erase(symbols, kNoToken);
}

}  // namespace specdec
