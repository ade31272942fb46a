// The choice of the kernels' instruction-set level, at run time.
#pragma once

#include <string_view>

#include "backend/cpu/kernel_table.h"

namespace specdec {

// The kernels of the best level that this machine supports, or of the one that SPECDEC_CPU_ISA
// names; decided once per process. Throws BackendUnavailableError where that name is unknown or its
// level absent.
const KernelTable& active_kernels();

// The kernels of one level by name; throws as above. For tests, which compare the levels.
const KernelTable& kernels_by_name(std::string_view name);

}  // namespace specdec
