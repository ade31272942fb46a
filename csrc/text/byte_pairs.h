// Byte pair encoding: the symbols of a word (characters or bytes at first) are joined pair by pair,
// the pair of lowest rank first and the leftmost of equals, until no neighbours have a rank. The
// ids are those of Hugging Face's `tokenizers`, of which this is the model without its loading
// time: a vocabulary of 262,144 tokens is ready in a fraction of a second.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_table.h"

namespace specdec {

// Two tokens and the one that they become.
struct MergePair {
  TokenId left, right, result;
};

// A vocabulary with ranked merges. Immutable: several threads may encode at once.
class BytePairs {
 public:
  // Byte-level: `merges` lists pairs of texts with a space between, best first. Every part and
  // every result must be one of `tokens` (else GgufError, naming the entry); a merge counts if all
  // three are pieces. pieces: ids of the tokens that text may become.
  static BytePairs from_merges(std::vector<std::string> tokens, const std::vector<TokenId>& pieces,
                               const std::vector<std::string>& merges, bool ignore_merges);

  // SentencePiece, which stores a score for each piece and no merges: two neighbours merge if their
  // union is a piece, the union of best score first (of equals the lower id); where one union has
  // several pairs, the longest left part first.
  //
  // scores: one for each token. runs: tokens of nothing but space marks (U+2581); they win over all
  // pieces, the longest left part first, so that a run of spaces is cut greedily from the left.
  // byte_ids: the token of each byte, for characters that are no pieces; kNoToken where there is
  // none. unknown: for a character without a piece and without tokens for its bytes, one for a run
  // of such characters; kNoToken: they are left out.
  static BytePairs from_scores(std::vector<std::string> tokens, const std::vector<TokenId>& pieces,
                               const std::vector<float>& scores, const std::vector<TokenId>& runs,
                               const std::array<TokenId, 256>& byte_ids, TokenId unknown);

  // Appends the ids of one word, which must be valid UTF-8. Takes O(n log n) for n characters.
  void encode(std::string_view word, std::vector<TokenId>& ids) const;

  // As `encode` for a text without words. Cut before space marks where no merge can reach over the
  // cut, which keeps the working set small and changes no id.
  void encode_text(std::string_view text, std::vector<TokenId>& ids) const;

  // The piece of a text, or kNoToken.
  TokenId find(std::string_view text) const { return table_.find(text); }

  BytePairs(const BytePairs&) = delete;  // the table points into tokens_
  BytePairs& operator=(const BytePairs&) = delete;
  BytePairs(BytePairs&&) = default;
  BytePairs& operator=(BytePairs&&) = default;

 private:
  // pairs: best first; of equal pairs the last counts.
  BytePairs(std::vector<std::string> tokens, TextTable table, const std::vector<MergePair>& pairs);

  bool cuts_are_safe(const std::vector<MergePair>& pairs) const;
  void append_unknown(std::string_view character, std::vector<TokenId>& symbols) const;
  std::vector<TokenId> characters(std::string_view word) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;

  std::vector<std::string> tokens_;
  TextTable table_;
  PairTable merges_;
  bool ignore_merges_ = false;
  bool may_cut_ = false;
  // Ids of the characters below U+0180, which the byte-level alphabet and most text are made of.
  std::array<TokenId, 0x180> character_ids_;
  std::array<TokenId, 256> byte_ids_;
  TokenId unknown_ = kNoToken;
};

}  // namespace specdec
