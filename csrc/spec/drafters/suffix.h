// Suffix drafting: finds the longest suffix of the text that occurred before, in the request's
// prompt and output or in a corpus of earlier sessions, and proposes what followed it, as far as
// the counts make that likely (the score of SuffixDecoding, arXiv 2411.04975: the product of the
// empirical conditional frequencies), as a chain or a small tree. Costs no model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spec/drafter.h"
#include "spec/suffix_automaton.h"
#include "spec/token_corpus.h"

namespace specdec {

struct SuffixOptions {
  std::int32_t max_draft = 24;
  std::int32_t min_match = 1;   // shortest suffix that is looked for
  std::int32_t max_match = 32;  // longest suffix that is told from a longer one
  std::int32_t branches = 2;    // most alternatives after a token; 1: chains only
  double min_score = 0.02;      // least product of frequencies of a proposed token
};

class SuffixDrafter final : public Drafter {
 public:
  // corpus: null, or the texts that are searched beside the request's own.
  SuffixDrafter(SuffixOptions options, std::unique_ptr<TokenCorpus> corpus);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return options_.max_draft; }
  bool runs_model() const override { return false; }
  bool prepare(const DraftContext& context) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void end(std::span<const TokenId> tokens) override;
  void reset() override;
  std::size_t cache_bytes() const override { return own_.bytes() + earlier_.bytes(); }

 private:
  // A node that may be proposed: the continuation of a match.
  struct Candidate {
    std::int32_t parent;
    TokenId token;
    float confidence;  // that it stands, given its parent
    double score;      // the product of confidences from the root
    SuffixAutomaton::Match match;
  };

  void follow(std::span<const TokenId> tokens, bool check_all);
  void index_corpus();
  void index_text(std::span<const TokenId> text);
  void add_candidates(const SuffixAutomaton& automaton, SuffixAutomaton::Match match,
                      std::int32_t parent, double score, std::vector<Candidate>& out) const;

  std::string name_ = "suffix";
  SuffixOptions options_;
  SuffixAutomaton own_;            // of this request's tokens
  std::vector<TokenId> followed_;  // the tokens in own_, a prefix of the committed ones
  std::unique_ptr<TokenCorpus> corpus_;
  SuffixAutomaton earlier_;               // of the corpus, texts apart by negative ids
  TokenId separator_ = -1;                // the next negative id
  SuffixAutomaton::Match earlier_match_;  // of the followed tokens in it
  std::vector<TokenId> stored_;           // the text that was stored last
};

}  // namespace specdec
