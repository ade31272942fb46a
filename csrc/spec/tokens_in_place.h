// Proposals whose tokens stay where they were drawn (Proposal::drawn): the host queues drafting,
// the verify pass and the verdict one after the other and waits only for the verdict.
#pragma once

#include "backend/backend.h"
#include "spec/drafter.h"

namespace specdec {

// Can the host go on without knowing the tokens that `backend` draws? Where they lie on the device
// that verifies them, and nothing on the host depends on them.
bool stays_in_place(const DraftContext& context, const Backend& backend);

// The proposal is complete: what the target is given from now on may read what `workspace` leaves.
void hand_over(const DraftContext& context, Workspace& workspace, const Proposal& proposal);

}  // namespace specdec
