// Drafting with a smaller model that has the target's vocabulary (arXiv 2211.17192): one token
// after the other, with the request's sampling chain but for a grammar's mask; or a tree of its likeliest tokens,
// grown by confidence (arXiv 2406.16858) or along a fixed shape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model_state.h"
#include "spec/chain_sampler.h"
#include "spec/draft_shape.h"
#include "spec/drafter.h"
#include "spec/tree_growth.h"

namespace specdec {

class DraftModelDrafter final : public Drafter {
 public:
  // n_ctx: positions of the draft's cache; where the text outgrows it, nothing is proposed.
  DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type,
                    DraftShape shape);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return shape_.max_draft; }
  bool prepare(const DraftContext& context) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void commit(std::span<const TokenId> tokens) override;
  void reset() override;
  std::size_t weight_bytes() const override { return state_.model().weight_bytes(); }
  std::size_t cache_bytes() const override { return state_.cache().bytes(); }
  std::size_t scratch_bytes() const override;

 private:
  bool run(std::span<const TokenId> tokens, LogitRows rows, const CancelFlag* cancel);
  bool catch_up(const DraftContext& context);
  void draft_chain(const DraftContext& context, std::int32_t count, Proposal& proposal);
  void draft_tree(const DraftContext& context, std::int32_t count, Proposal& proposal);
  bool score_frontier(const DraftContext& context, TreeGrowth& tree);
  std::vector<TokenProb> likeliest(const DraftContext& context, std::int32_t row,
                                   std::int32_t count);

  std::string name_ = "draft";
  ModelState state_;
  DraftShape shape_;
  ChainSampler sampler_;
  std::unique_ptr<Buffer> weights_;  // [vocab]: of a node of a tree
  std::vector<TokenId>
      cached_;  // the tokens of the cache rows; a prefix of the text between rounds
};

}  // namespace specdec
