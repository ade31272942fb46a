#include "spec/drafters/layer_skip.h"

#include <algorithm>

#include "core/error.h"
#include "spec/tokens_in_place.h"

namespace specdec {

std::vector<std::int32_t> spread_layers(std::int32_t count, std::int32_t total) {
  if (count < 1 || count > total) {
    throw InvalidArgument(str("layer skip wants ", count, " layers, but the target has ", total,
                              "; give 1 to ", total));
  }
  std::vector<std::int32_t> layers;
  for (std::int64_t i = 0; i < count; ++i) {
    // Rounded i * (total - 1) / (count - 1).
    layers.push_back(count == 1 ? 0
                                : static_cast<std::int32_t>((2 * i * (total - 1) + count - 1) /
                                                            (2 * (count - 1))));
  }
  return layers;
}

LayerSkipDrafter::LayerSkipDrafter(std::shared_ptr<const Model> target,
                                   std::vector<std::int32_t> layers, std::int32_t max_draft)
    : target_(std::move(target)),
      layers_(std::move(layers)),
      max_draft_(checked_max_draft(max_draft)) {
  if (layers_.empty()) throw InvalidArgument("layer skip needs at least one layer to run");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i] < 0 || layers_[i] >= target_->config().layers) {
      throw InvalidArgument(str("layer ", layers_[i], " is not one of the target's ",
                                target_->config().layers, " (0 to ", target_->config().layers - 1,
                                ")"));
    }
    if (i > 0 && layers_[i] <= layers_[i - 1]) {
      throw InvalidArgument(
          str("layers must ascend, but ", layers_[i], " follows ", layers_[i - 1]));
    }
  }
}

Proposal LayerSkipDrafter::propose(const DraftContext& context, std::int32_t budget) {
  SPECDEC_CHECK(context.target != nullptr && &context.target->model() == target_.get(),
                "layer skip drafts for the model it was made for");
  ModelState& state = *context.target;
  const std::int32_t base = state.cache().length();
  Proposal proposal;
  proposal.source = name_;
  const std::int32_t count = std::min({budget, max_draft_, state.n_ctx() - base});
  TokenId last = context.tokens.back();
  const bool in_place = stays_in_place(context, state.backend());
  while (proposal.size() < count) {
    if (!state.run({&last, 1}, {}, {1}, context.cancel, {layers_, {}}, proposal.drawn)) break;
    sampler_.draw(context, state.backend(), state.workspace(), state.logits(0), proposal, in_place);
    last = proposal.tokens.back();
  }
  hand_over(context, state.workspace(), proposal);
  state.cache().truncate(base);
  return proposal;
}

}  // namespace specdec
