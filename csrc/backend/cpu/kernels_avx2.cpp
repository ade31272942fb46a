// The kernels at the level avx2; see kernels.inl.
#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_avx2() {
  static constexpr KernelTable table = make_table("avx2");
  return table;
}

}  // namespace specdec
