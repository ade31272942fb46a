// Drafting with a smaller model that has the target's vocabulary (arXiv 2211.17192): one token
// after the other, with the request's whole sampling chain but for a grammar's mask, each token
// with the prefix that it would have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model_state.h"
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
  float* weight_row(std::int32_t i, std::int32_t vocab);
  const float* adjusted_logits(const DrawParams& draw);
  void draw_token(const DraftContext& context, Proposal& proposal);

  std::string name_ = "draft";
  ModelState state_;
  std::int32_t max_draft_;
  std::vector<TokenId>
      cached_;  // the tokens of the cache rows; a prefix of the text between rounds
  std::vector<std::unique_ptr<Buffer>>
      weights_;                       // [max_draft][vocab]: what each token was drawn from
  TokenCounts counts_;                // of the text and the chain drafted so far
  std::unique_ptr<Buffer> adjusted_;  // [vocab] logits with penalties and bias
};

}  // namespace specdec
