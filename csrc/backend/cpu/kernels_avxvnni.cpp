// The kernels at the level avxvnni; see kernels.inl.
#define SPECDEC_AVXVNNI
#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_avxvnni() {
  static constexpr KernelTable table = make_table("avxvnni");
  return table;
}

}  // namespace specdec
