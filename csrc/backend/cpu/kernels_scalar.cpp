// The kernels at the level scalar; see kernels.inl.
#include "backend/cpu/vec_scalar.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_scalar() {
  static constexpr KernelTable table = make_table("scalar");
  return table;
}

}  // namespace specdec
