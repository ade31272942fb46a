// The kernels at the level avx512vnni; see kernels.inl.
#if defined(__GNUC__) && !defined(__clang__)
// False alarms in the intrinsics headers of g++ 12.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/kernels.inl"

namespace specdec {

const KernelTable& kernels_avx512vnni() {
  static constexpr KernelTable table = make_table("avx512vnni");
  return table;
}

}  // namespace specdec
