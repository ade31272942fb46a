// Drafting with a smaller model (arXiv 2211.17192): one token after the other, with the request's
// sampling chain but for a grammar's mask; or a tree of its likeliest tokens, grown by confidence
// (arXiv 2406.16858) or along a fixed shape. It has the target's vocabulary, or is told how its own
// relates to it; it may score a part of its vocabulary only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model_state.h"
#include "model/reduced_head.h"
#include "spec/chain_sampler.h"
#include "spec/draft_shape.h"
#include "spec/drafter.h"
#include "spec/rank_picker.h"
#include "spec/translated_text.h"
#include "spec/tree_growth.h"

namespace specdec {

class DraftModelDrafter final : public Drafter {
 public:
  // n_ctx: positions of the draft's cache; where the text outgrows it, nothing is proposed.
  DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type,
                    DraftShape shape);

  // A chain ends before a token whose distribution gives none so much probability; 0: never.
  void set_min_confidence(float probability);
  // Proposes only some of the draft's tokens. Before the first use.
  void reduce_vocabulary(DraftVocabulary vocabulary);
  // The draft has a tokenizer of its own. After reduce_vocabulary, which says which tokens both
  // have.
  void translate_text(TranslateTokens translate);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return shape_.max_draft; }
  bool prepare(const DraftContext& context) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void learn_tokens(const Proposal& proposal) override;
  void commit(std::span<const TokenId> tokens) override;
  void reset() override;
  // Rows of the draft's cache that the next proposal need not compute again.
  std::int32_t cached_rows() const { return state_.cache().length(); }
  std::size_t weight_bytes() const override;
  std::size_t cache_bytes() const override { return state_.cache().bytes(); }
  std::size_t scratch_bytes() const override;

 private:
  std::span<const TokenId> draft_text(std::span<const TokenId> tokens);
  bool run(std::span<const TokenId> tokens, std::span<const std::int32_t> parents, LogitRows rows,
           const CancelFlag* cancel, const DrawnToken* drawn = nullptr);
  bool append(std::span<const TokenId> tokens, LogitRows rows, const CancelFlag* cancel,
              const DrawnToken* drawn = nullptr);
  bool stays_in_place(const DraftContext& context) const;
  const float* logits(const DraftContext& context, std::int32_t row);
  void cut_cache(std::span<const TokenId> text);
  bool catch_up(std::span<const TokenId> text, const CancelFlag* cancel);
  void draft_chain(const DraftContext& context, std::int32_t count, Proposal& proposal);
  void draft_tree(const DraftContext& context, std::int32_t count, Proposal& proposal);
  bool score_frontier(const DraftContext& context, TreeGrowth& tree);
  std::vector<TokenProb> likeliest(const DraftContext& context, std::int32_t row,
                                   std::int32_t count);

  std::string name_ = "draft";
  ModelState state_;
  DraftShape shape_;
  float min_confidence_ = 0.0f;
  ChainSampler sampler_;
  RankPicker picker_;
  std::unique_ptr<ReducedHead> head_;     // null: the model's own, all tokens
  std::unique_ptr<TranslatedText> text_;  // null: the draft reads the target's tokens
  // The draft's tokens of the cache rows, within a round also such as lie in sampler_.drawn(); a
  // prefix of the text between rounds.
  std::vector<TokenId> cached_;
};

}  // namespace specdec
