// Drafting with an EAGLE-3 head (arXiv 2503.01840): a chain with the request's sampling, or a tree
// grown by confidence (arXiv 2406.16858) or along a fixed shape.
//
// The head's cache holds rows made of the target's hidden states only, one for each token but the
// first of the text: what is written while drafting is always dropped again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/eagle_head.h"
#include "spec/chain_sampler.h"
#include "spec/draft_shape.h"
#include "spec/drafter.h"
#include "spec/rank_picker.h"
#include "spec/tree_growth.h"

namespace specdec {

class EagleDrafter final : public Drafter {
 public:
  // n_ctx, kv_type: of the head's cache; where the text outgrows it, nothing is proposed.
  EagleDrafter(std::shared_ptr<const EagleHead> head, std::int32_t n_ctx, DType kv_type,
               DraftShape shape);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return shape_.max_draft; }
  std::vector<std::int32_t> hidden_layers() const override;
  std::int32_t hidden_rows_held(std::span<const TokenId> tokens) const override;
  void take_hidden(const DraftContext& context, const HiddenRows& hidden) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void commit(std::span<const TokenId> tokens) override;
  void reset() override { commit({}); }
  std::size_t weight_bytes() const override { return head_->weight_bytes(); }
  std::size_t cache_bytes() const override { return state_.cache().bytes(); }
  std::size_t scratch_bytes() const override;

 private:
  // The row of the text's last token but one, which guesses what follows the pending one.
  struct Root {
    bool valid = false;
    std::unique_ptr<Buffer> hidden;  // [E] the layer's output
    std::unique_ptr<Buffer> logits;  // [Vd]
  };

  std::int32_t cached() const { return state_.cache().length(); }
  std::size_t state_floats() const;  // hidden states of the target per row
  float* buffer(std::unique_ptr<Buffer>& buffer, std::size_t floats);
  void store_states(const DraftContext& context, const HiddenRows& hidden, std::int32_t first);
  bool catch_up(const CancelFlag* cancel);
  void keep_root(std::int32_t row);
  void draft_chain(const DraftContext& context, std::int32_t count, Proposal& proposal);
  void draft_tree(const DraftContext& context, std::int32_t count, Proposal& proposal);
  bool score_frontier(const DraftContext& context, TreeGrowth& tree);
  std::vector<TokenProb> likeliest(const DraftContext& context, const float* logits,
                                   std::int32_t count);
  const float* target_logits(const DraftContext& context, const float* logits);

  std::string name_ = "eagle";
  std::shared_ptr<const EagleHead> head_;
  DraftShape shape_;
  EagleState state_;
  ChainSampler sampler_;
  RankPicker picker_;
  Root root_;
  // The text that the rows stand for: row j belongs to tokens j and j + 1. So many rows are cached
  // or pending, and one token more is here; empty: no rows.
  std::vector<TokenId> seen_;
  std::int32_t pending_ = 0;                // rows behind the cached ones that are not run yet
  std::unique_ptr<Buffer> pending_states_;  // [pending, states * Et]
  std::unique_ptr<Buffer> fused_;           // [rows of a pass, E]
  std::unique_ptr<Buffer> outputs_;         // [nodes, E]: of the expanded nodes of a tree
  std::unique_ptr<Buffer> scattered_;       // [V]
};

}  // namespace specdec
