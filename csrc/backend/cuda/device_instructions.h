// Instructions that C++ does not have: each stands here once, inline PTX under nvcc, a function of
// emu/ elsewhere. kernels/self_test.cu runs every one on small integers.
#pragma once

#include "backend/cuda/device_code.h"
#if !defined(__CUDACC__)
#include "backend/cuda/emu/device_instructions.h"
#endif

namespace specdec::cuda {

// Products of matrices by a whole warp: d = start + a b, signed bytes into 32-bit integers, exact.
// Lane l, with g = l / 4 and t = l % 4, holds four consecutive bytes of k in each register:
//
//   a [16 rows, k]      a[0] row g, k = 4t..4t+3         a[1] row g + 8, the same k
//                       a[2] row g, k = 16 + 4t..        a[3] row g + 8, k = 16 + 4t..
//   b [k, 8 columns]    b[0] column g, k = 4t..4t+3      b[1] column g, k = 16 + 4t..
//   d [16 rows, 8]      d[0] row g, column 2t            d[1] row g, column 2t + 1
//                       d[2] row g + 8, column 2t        d[3] row g + 8, column 2t + 1
//
// Devices before compute capability 8.0 know only [8, 16] x [16, 8] at a time, in the same layout.

#if defined(__CUDACC__)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
__device__ __forceinline__ void add_product_8x16(int& d0, int& d1, unsigned a, unsigned b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(d0), "+r"(d1)
      : "r"(a), "r"(b));
}
#endif

// k = 16: a0, a1 and b as a[0], a[1] and b[0] above.
__device__ __forceinline__ void multiply_16x16(int (&d)[4], unsigned a0, unsigned a1, unsigned b,
                                               int start) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  d[0] = d[1] = d[2] = d[3] = start;
  add_product_8x16(d[0], d[1], a0, b);
  add_product_8x16(d[2], d[3], a1, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(start));
#endif
}

// k = 32
__device__ __forceinline__ void multiply_16x32(int (&d)[4], const unsigned (&a)[4],
                                               const unsigned (&b)[2], int start) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  multiply_16x16(d, a[0], a[1], b[0], start);
  add_product_8x16(d[0], d[1], a[2], b[1]);
  add_product_8x16(d[2], d[3], a[3], b[1]);
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%10, %10, %10, %10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start));
#endif
}

// Copies of 16 bytes from global to shared memory that run while the lane goes on; both addresses
// are multiples of 16. The bytes may be read after copy_async_wait, by other lanes after a barrier
// behind it; until then they are indeterminate. Before compute capability 8.0 a plain copy.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#else
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#endif
}
// Ends a group: the lane's copies since the last one.
__device__ __forceinline__ void copy_async_commit() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
__device__ __forceinline__ void copy_async_wait_for() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

#else

inline void multiply_16x16(int (&d)[4], unsigned a0, unsigned a1, unsigned b, int start,
                           emu::Location at = emu::Location::current()) {
  emu::multiply_fragments({{a0, a1, 0, 0}, {b, 0}, start, d}, at);
}
inline void multiply_16x32(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], int start,
                           emu::Location at = emu::Location::current()) {
  emu::multiply_fragments({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, start, d}, at);
}
inline void copy_async_16(void* shared, const void* global) { emu::copy_later(shared, global); }
inline void copy_async_commit() { emu::commit_copies(); }
template <int kPending>
void copy_async_wait_for() {
  emu::finish_copies(kPending);
}

#endif

// Waits until at most `pending` of the lane's groups are not done. pending: 0..6
__device__ __forceinline__ void copy_async_wait(int pending) {
  switch (pending) {
    case 6:
      return copy_async_wait_for<6>();
    case 5:
      return copy_async_wait_for<5>();
    case 4:
      return copy_async_wait_for<4>();
    case 3:
      return copy_async_wait_for<3>();
    case 2:
      return copy_async_wait_for<2>();
    case 1:
      return copy_async_wait_for<1>();
    default:
      return copy_async_wait_for<0>();
  }
}

}  // namespace specdec::cuda
