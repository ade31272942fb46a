// The kernels at the level neon_dotprod; see kernels.inl.
#define SPECDEC_NEON_DOTPROD
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_neon_dotprod() {
  static constexpr KernelTable table = make_table("neon_dotprod");
  return table;
}

}  // namespace specdec
