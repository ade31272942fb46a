#include "spec/tokens_in_place.h"

namespace specdec {

bool stays_in_place(const DraftContext& context, const Backend& backend) {
  if (!context.unknown_tokens || context.target == nullptr || context.counts != nullptr) {
    return false;
  }
  const Model& target = context.target->model();
  return backend.device() != kHostMemory && target.spans().size() == 1 &&
         target.backend().device() == backend.device();
}

void hand_over(const DraftContext& context, Workspace& workspace, const Proposal& proposal) {
  if (proposal.drawn == nullptr) return;
  context.target->backend().order(workspace, context.target->workspace());
}

}  // namespace specdec
