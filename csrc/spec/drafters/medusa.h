// Drafting with Medusa heads (arXiv 2401.10774): one hidden state of the target, several guesses at
// each of the next places, laid out as a static tree. Its nodes are picked by rank, so they count
// as deterministic.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/medusa_heads.h"
#include "spec/drafter.h"
#include "spec/rank_picker.h"
#include "spec/static_tree.h"

namespace specdec {

class MedusaDrafter final : public Drafter {
 public:
  // tree: at most as deep as there are heads. Throws InvalidArgument if it is not.
  MedusaDrafter(std::shared_ptr<const MedusaHeads> heads, RankTree tree);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return static_cast<std::int32_t>(tree_.size()); }
  std::vector<std::int32_t> hidden_layers() const override;
  std::int32_t hidden_rows_held(std::span<const TokenId> tokens) const override;
  void take_hidden(const DraftContext& context, const HiddenRows& hidden) override;
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  void commit(std::span<const TokenId> tokens) override;
  void reset() override { seen_.clear(); }
  std::size_t weight_bytes() const override { return heads_->weight_bytes(); }
  std::size_t scratch_bytes() const override { return pass_.bytes() + picker_.bytes(); }
  RecordingCounts recordings() const { return pass_.recordings(); }

 private:
  std::string name_ = "medusa";
  std::shared_ptr<const MedusaHeads> heads_;
  RankTree tree_;
  MedusaPass pass_;
  RankPicker picker_;
  // The text up to the row whose hidden state is kept, the one before the pending token; empty:
  // there is none.
  std::vector<TokenId> seen_;
};

}  // namespace specdec
