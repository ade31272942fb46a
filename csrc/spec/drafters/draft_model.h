// Drafting with a smaller model that has the target's vocabulary (arXiv 2211.17192): one token
// after the other, with the request's whole sampling chain but for a grammar's mask, each token
// with the prefix that it would have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model_state.h"
#include "spec/chain_sampler.h"
#include "spec/drafter.h"

namespace specdec {

class DraftModelDrafter final : public Drafter {
 public:
  // n_ctx: positions of the draft's cache; where the text outgrows it, nothing is proposed.
  DraftModelDrafter(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type,
                    std::int32_t max_draft);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return max_draft_; }
  bool prepare(const DraftContext& context) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void commit(std::span<const TokenId> tokens) override;
  void reset() override;
  std::size_t weight_bytes() const override { return state_.model().weight_bytes(); }
  std::size_t cache_bytes() const override { return state_.cache().bytes(); }
  std::size_t scratch_bytes() const override;

 private:
  bool run(std::span<const TokenId> tokens, LogitRows rows, const CancelFlag* cancel);

  std::string name_ = "draft";
  ModelState state_;
  std::int32_t max_draft_;
  ChainSampler sampler_;
  std::vector<TokenId>
      cached_;  // the tokens of the cache rows; a prefix of the text between rounds
};

}  // namespace specdec
