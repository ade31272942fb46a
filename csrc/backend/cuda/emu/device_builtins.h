// What nvcc gives to device code, for the C++ compiler: the part that the kernels use, no more.
// Included by device_code.h only. Collectives take their place in the source along.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>

#include "backend/cuda/emu/executor.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::specdec::emu::lane_index().thread)
#define blockIdx (::specdec::emu::lane_index().block)
#define blockDim (::specdec::emu::lane_index().block_dim)
#define gridDim (::specdec::emu::lane_index().grid_dim)

// The static object's address tells the arrays of all kernels and instantiations apart.
#define SPECDEC_SHARED(type, name, extents)         \
  static const char name##_key = 0;                 \
  using name##_array = type extents;                \
  name##_array& name = *static_cast<name##_array*>( \
      ::specdec::emu::shared_memory(&name##_key, sizeof(name##_array)))
#define SPECDEC_DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(::specdec::emu::dynamic_shared_memory())

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

namespace specdec::emu {

using Location = std::source_location;
inline Site site_of(const Location& location) {
  return {location.file_name(), static_cast<int>(location.line())};
}

template <typename T>
T exchange(T value, unsigned source, const Location& location) {
  static_assert(sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = warp_exchange(bits, source, site_of(location));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// An atomic operation. Lanes never run at the same time, but ThreadSanitizer takes them for
// threads.
template <typename T, typename F>
T update(T* place, F f) {
#if defined(SPECDEC_EMU_TSAN)
  std::atomic_ref<T> shared(*place);
  T old = shared.load(std::memory_order_relaxed);
  while (!shared.compare_exchange_weak(old, f(old), std::memory_order_relaxed)) {
  }
  return old;
#else
  const T old = *place;
  *place = f(old);
  return old;
#endif
}

}  // namespace specdec::emu

inline void __syncthreads(std::source_location at = std::source_location::current()) {
  specdec::emu::block_barrier(specdec::emu::site_of(at));
}
inline void __syncwarp(std::source_location at = std::source_location::current()) {
  specdec::emu::warp_barrier(specdec::emu::site_of(at));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned lanes,
                  std::source_location at = std::source_location::current()) {
  return specdec::emu::exchange(value, (threadIdx.x & 31u) ^ lanes, at);
}
template <typename T>
T __shfl_sync(unsigned, T value, unsigned source,
              std::source_location at = std::source_location::current()) {
  return specdec::emu::exchange(value, source, at);
}

template <typename T>
T atomicAdd(T* place, T value) {
  return specdec::emu::update(place, [=](T old) { return static_cast<T>(old + value); });
}
template <typename T>
T atomicMin(T* place, T value) {
  return specdec::emu::update(place, [=](T old) { return value < old ? value : old; });
}
template <typename T>
T atomicMax(T* place, T value) {
  return specdec::emu::update(place, [=](T old) { return value > old ? value : old; });
}

// c + the dot product of four signed bytes.
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) {
    c += static_cast<std::int8_t>(a >> i) * static_cast<std::int8_t>(b >> i);
  }
  return c;
}
// Four bytes of (y, x), chosen by the nibbles of `selector` (no sign replication).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const std::uint64_t bytes = (std::uint64_t{y} << 32) | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = (selector >> (4 * i)) & 7u;
    out |= static_cast<unsigned>((bytes >> (8 * pick)) & 0xffu) << (8 * i);
  }
  return out;
}
