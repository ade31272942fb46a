// The kernels at the level neon; see kernels.inl.
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_neon() {
  static constexpr KernelTable table = make_table("neon");
  return table;
}

}  // namespace specdec
