// Reductions over a thread block of kRowThreads threads, exact or order-independent, so that
// nothing depends on the shape of the tree. All threads call them together and get the result.
#pragma once

#include "backend/cuda/device_code.h"

namespace specdec::cuda {

inline constexpr int kRowThreads = 512;  // of the blocks that work on a row of logits
inline constexpr int kRowWarps = kRowThreads / kWarpLanes;

using Mass = unsigned long long;  // std::uint64_t as CUDA's atomics spell it

// combine(a, b) must be associative and commutative.
template <typename T, typename Combine>
__device__ __forceinline__ T reduce_block(T value, const Combine& combine) {
  SPECDEC_SHARED(T, partial, [kRowWarps]);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    value = combine(value, __shfl_xor_sync(kFullWarp, value, apart));
  }
  __syncthreads();  // whoever still reads the last result
  if (lane_of_warp() == 0) partial[warp_of_block()] = value;
  __syncthreads();
  value = partial[0];
  for (int w = 1; w < kRowWarps; ++w) value = combine(value, partial[w]);
  return value;
}

__device__ __forceinline__ Mass sum_block(Mass value) {
  return reduce_block(value, [](Mass a, Mass b) { return a + b; });
}
__device__ __forceinline__ float max_block(float value) {
  return reduce_block(value, [](float a, float b) { return b > a ? b : a; });
}
__device__ __forceinline__ int min_block(int value) {
  return reduce_block(value, [](int a, int b) { return b < a ? b : a; });
}
__device__ __forceinline__ double min_block(double value) {
  return reduce_block(value, [](double a, double b) { return b < a ? b : a; });
}

// body(id) for every id in [0, vocab), shared out over the block.
template <typename Body>
__device__ __forceinline__ void for_each_id(int vocab, const Body& body) {
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kRowThreads) body(id);
}

}  // namespace specdec::cuda
