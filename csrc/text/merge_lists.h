// Where the ranked merges of a vocabulary come from: its own list, or the scores of its pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/byte_pairs.h"

namespace specdec {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// The merges of a list of lines "left right", best first. Each part and each result must be a token
// (else GgufError); a merge is left out where one of them is no piece of the table.
std::vector<MergePair> parse_merges(const std::vector<std::string>& tokens, const TextTable& pieces,
                                    const std::vector<std::string>& lines);

// The merges that scores imply, best first; see BytePairs::from_scores. `table` holds the ids of
// `pieces` and `runs` by their texts.
std::vector<MergePair> derive_merges(const std::vector<std::string>& tokens, const TextTable& table,
                                     const std::vector<TokenId>& pieces,
                                     const std::vector<float>& scores,
                                     const std::vector<TokenId>& runs);

}  // namespace specdec
