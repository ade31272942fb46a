// The one header that kernel sources include: CUDA under nvcc; under any other compiler the
// emulated device of emu/, on which the same source runs on the CPU (tests only).
//
// Rules for kernels: README.md here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/half.h"
#include "core/host_device.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

// type name extents, in shared memory: SPECDEC_SHARED(float, tile, [8][32]);
#define SPECDEC_SHARED(type, name, extents) __shared__ type name extents
#define SPECDEC_DYNAMIC_SHARED(type, name)                                      \
  extern __shared__ __align__(16) unsigned char specdec_dynamic_shared_bytes[]; \
  type* name = reinterpret_cast<type*>(specdec_dynamic_shared_bytes)
#else
#include "backend/cuda/emu/device_builtins.h"
#endif

namespace specdec::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarpLanes = 32;

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ __forceinline__ int warp_of_block() {
  return static_cast<int>(threadIdx.x) / kWarpLanes;
}

// A half as a float: exact, so one instruction does what half_to_float does.
__device__ __forceinline__ float half_value(std::uint16_t bits) {
#if defined(__CUDACC__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  return half_to_float(bits);
#endif
}

// The tree that ends a sum on 16 virtual lanes: lanes 8 apart, then 4, 2, 1. Each half of the warp
// holds one sum; all its lanes get the result.
__device__ __forceinline__ float sum_16_lanes(float value) {
  value = value + __shfl_xor_sync(kFullWarp, value, 8);
  value = value + __shfl_xor_sync(kFullWarp, value, 4);
  value = value + __shfl_xor_sync(kFullWarp, value, 2);
  return value + __shfl_xor_sync(kFullWarp, value, 1);
}

}  // namespace specdec::cuda
