#include "text/merge_lists.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "core/error.h"
#include "core/printable.h"

namespace specdec {
namespace {

const std::string& text_of(const std::vector<std::string>& tokens, TokenId id) {
  return tokens[static_cast<std::size_t>(id)];
}

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// The two parts of a line "left right"; the right one is missing where there is no space.
struct Parts {
  std::string_view left;
  std::optional<std::string_view> right;
};

Parts parts_of(std::string_view line) {
  const std::size_t space = line.find(' ', 1);
  if (space == std::string_view::npos) return {line, std::nullopt};
  return {line.substr(0, space), line.substr(space + 1)};
}

// Refuses a merge of which a part or the result is no token at all.
void check_tokens(const TextTable& tokens, std::size_t index, std::string_view line,
                  const Parts& parts) {
  const std::string_view right = parts.right.value_or("");
  const std::string both = std::string(parts.left).append(right);
  if (parts.right && tokens.find(parts.left) != kNoToken && tokens.find(right) != kNoToken &&
      tokens.find(both) != kNoToken) {
    return;
  }
  throw GgufError(str("tokenizer.ggml.merges[", index, "] is ", quoted(line), ", but ",
                      quoted(parts.left), ", ", quoted(right), " and ", quoted(both),
                      " are not all in tokenizer.ggml.tokens. Convert the model again with a "
                      "current converter, or get the file from another place."));
}

// Appends the pairs that make a piece, the longest left part first.
void append_pairs(const std::vector<std::string>& tokens, const TextTable& table, TokenId piece,
                  std::vector<MergePair>& pairs) {
  const std::string_view text = text_of(tokens, piece);
  for (std::size_t cut = text.size(); cut-- > 1;) {
    if (!starts_character(text[cut])) continue;
    const TokenId left = table.find(text.substr(0, cut));
    if (left == kNoToken) continue;
    const TokenId right = table.find(text.substr(cut));
    if (right != kNoToken) pairs.push_back({left, right, piece});
  }
}

}  // namespace

std::vector<MergePair> parse_merges(const std::vector<std::string>& tokens, const TextTable& pieces,
                                    const std::vector<std::string>& lines) {
  std::vector<MergePair> pairs;
  pairs.reserve(lines.size());
  std::optional<TextTable> everything;  // made when a merge has something that is no piece
  std::string both;
  for (std::size_t index = 0; index < lines.size(); ++index) {
    const Parts parts = parts_of(lines[index]);
    if (parts.right) {
      const TokenId left = pieces.find(parts.left), right = pieces.find(*parts.right);
      both.assign(parts.left).append(*parts.right);
      const TokenId result = pieces.find(both);
      if (left != kNoToken && right != kNoToken && result != kNoToken) {
        pairs.push_back({left, right, result});
        continue;
      }
    }
    if (!everything) {
      everything.emplace(tokens.size());
      for (std::size_t id = 0; id < tokens.size(); ++id) {
        everything->insert(tokens[id], static_cast<TokenId>(id));
      }
    }
    check_tokens(*everything, index, lines[index], parts);
  }
  return pairs;
}

std::vector<MergePair> derive_merges(const std::vector<std::string>& tokens, const TextTable& table,
                                     const std::vector<TokenId>& pieces,
                                     const std::vector<float>& scores,
                                     const std::vector<TokenId>& runs) {
  std::vector<MergePair> pairs;
  pairs.reserve(2 * pieces.size());
  for (const TokenId run : runs) append_pairs(tokens, table, run, pairs);
  std::sort(pairs.begin(), pairs.end(), [&](const MergePair& a, const MergePair& b) {
    const std::size_t left_a = text_of(tokens, a.left).size();
    const std::size_t left_b = text_of(tokens, b.left).size();
    if (left_a != left_b) return left_a > left_b;
    return text_of(tokens, a.right).size() > text_of(tokens, b.right).size();
  });
  const auto score = [&](TokenId id) { return scores[static_cast<std::size_t>(id)]; };
  std::vector<TokenId> ranked = pieces;
  std::sort(ranked.begin(), ranked.end(), [&](TokenId a, TokenId b) {
    return score(a) != score(b) ? score(a) > score(b) : a < b;
  });
  for (const TokenId piece : ranked) {
    // Of equal texts only the one that text becomes.
    if (table.find(text_of(tokens, piece)) == piece) append_pairs(tokens, table, piece, pairs);
  }
  return pairs;
}

}  // namespace specdec
