// Which device a name means, and whether it can be used.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace specdec::cuda {

// The backend of a device called `family` (the first) or "FAMILY:N"; null for other names. Throws
// BackendUnavailableError with the reason and the way out.
std::shared_ptr<const Backend> open_device(const std::string& family, const std::string& name);

// Throws BackendUnavailableError, with what the kernels were compiled for and what the device is,
// unless this build's kernels run on it.
void check_kernels_run(int device);

}  // namespace specdec::cuda
