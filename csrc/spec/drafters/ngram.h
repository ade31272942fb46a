// Lookup drafting (prompt lookup decoding): where did the last few tokens occur before, and what
// followed? Costs no model. Looks at this request's prompt and output only.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "spec/drafter.h"

namespace specdec {

class NgramDrafter final : public Drafter {
 public:
  // Matches suffixes of max_ngram tokens first, then shorter ones down to min_ngram.
  NgramDrafter(std::int32_t max_draft, std::int32_t min_ngram, std::int32_t max_ngram);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return max_draft_; }
  bool runs_model() const override { return false; }
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void reset() override;

 private:
  void index_up_to(std::span<const TokenId> tokens);
  std::int32_t find_continuation(std::span<const TokenId> tokens, std::int32_t& matched) const;

  std::string name_ = "ngram";
  std::int32_t max_draft_, min_ngram_, max_ngram_;
  std::vector<TokenId>
      indexed_;  // the tokens that the index covers, a prefix of the committed ones
  // by_length_[n - min_ngram_]: hash of n tokens -> index of the token after their latest
  // occurrence
  std::vector<std::unordered_map<std::uint64_t, std::int32_t>> by_length_;
};

}  // namespace specdec
