// The output head of a draft model computed for some of its tokens only, and its logits in the
// numbering of another model's vocabulary.
//
// The head dominates a small draft model: of SmolLM2-135M it is a fifth of all weights. Most text
// is made of few tokens, so a draft that scores only those is cheaper and nearly as good; and a
// draft with another vocabulary can propose the tokens whose strings both have. What is left out
// has probability 0, which is a draft distribution like any other: nothing is lost but acceptance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/transformer.h"

namespace specdec {

// Which tokens of a draft model may be proposed.
struct DraftVocabulary {
  std::vector<TokenId> scored;  // draft ids, each once
  // Draft id -> id of the same string in the target [draft vocabulary], -1 = it has none; empty:
  // both have one vocabulary.
  std::vector<TokenId> target_of;
};

class ReducedHead {
 public:
  // Throws InvalidArgument naming an id that is out of range, given twice, or unknown to the
  // target.
  ReducedHead(std::shared_ptr<const Model> model, DraftVocabulary vocabulary);

  // The target's id of a draft token, -1 = it has none; and the reverse.
  TokenId target_id(TokenId draft_token) const;
  TokenId draft_id(TokenId target_token) const;

  // Scores the tokens of a text as well, from now on: what was said is likely to come again. `text`
  // holds draft ids. A function of `text` alone.
  void follow(std::span<const TokenId> text);

  // Scores the last `count` of the `rows` rows of the last pass, which ran without logits.
  void run(Activations& activations, std::int32_t rows, std::int32_t count);
  // Logits of the i-th of them by target id, -infinity for all that is not scored. Backend memory
  // [target_vocab], valid until the next call.
  const float* logits(Workspace& workspace, std::int32_t i, std::int32_t target_vocab);

  std::size_t weight_bytes() const { return base_.bytes() + extra_.bytes(); }
  std::size_t scratch_bytes() const;

 private:
  // Some rows of the output matrix.
  struct Part {
    std::vector<TokenId> ids;        // [n] draft ids
    std::vector<std::byte> source;   // [n, row bytes]: float weights keep using it
    std::unique_ptr<Weight> weight;  // [n, E]
    std::unique_ptr<Buffer> logits;  // [count, n]
    std::int32_t size() const { return static_cast<std::int32_t>(ids.size()); }
    std::size_t bytes() const { return weight ? source.size() + weight->bytes() : 0; }
  };

  void load(Part& part, std::vector<TokenId> ids) const;
  void score(Part& part, Activations& activations, std::int32_t count) const;
  float* grown(std::unique_ptr<Buffer>& buffer, std::size_t floats) const;
  bool may_score(TokenId id) const;

  std::shared_ptr<const Model> model_;
  std::vector<TokenId> target_of_;  // [draft vocabulary] or empty
  std::vector<TokenId> draft_of_;   // [largest target id + 1] or empty
  std::vector<bool> in_base_;       // [draft vocabulary]
  Part base_, extra_;
  std::int32_t joined_size_ = 0;                   // base + extra
  std::unique_ptr<Buffer> target_ids_;             // [base + extra]: of the joined logits
  std::unique_ptr<Buffer> joined_, by_target_id_;  // [base + extra], [target vocab]
};

}  // namespace specdec
