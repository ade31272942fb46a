// Self-speculation (arXiv 2309.08168, 2404.16710): drafting with some of the target's own layers,
// on the target's own cache. No weights and no cache of its own: the committed rows are the full
// model's, the rows of a draft are provisional and are overwritten by the verify pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "spec/chain_sampler.h"
#include "spec/drafter.h"

namespace specdec {

// `count` of `total` layers: the first, the last, and what lies between at equal distances.
std::vector<std::int32_t> spread_layers(std::int32_t count, std::int32_t total);

class LayerSkipDrafter final : public Drafter {
 public:
  // layers: indices of the target's layers that are run, ascending; at least one. Throws
  // InvalidArgument for others.
  LayerSkipDrafter(std::shared_ptr<const Model> target, std::vector<std::int32_t> layers,
                   std::int32_t max_draft);

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return max_draft_; }
  const std::vector<std::int32_t>& layers() const { return layers_; }
  Proposal propose(const DraftContext& context, std::int32_t budget) override;
  std::size_t scratch_bytes() const override { return sampler_.bytes(); }

 private:
  std::string name_ = "layerskip";
  std::shared_ptr<const Model> target_;
  std::vector<std::int32_t> layers_;
  std::int32_t max_draft_;
  ChainSampler sampler_;
};

}  // namespace specdec
