// How kernels read and write rows [D] of the key/value cache; see cache_row.h for the bytes.
#pragma once

#include "backend/cuda/device_code.h"

namespace specdec::cuda {

inline constexpr int kQ8Bytes = 34;  // a half and 32 signed bytes

struct RowF32 {
  __device__ __forceinline__ static float load(const std::uint8_t* row, int d) {
    return reinterpret_cast<const float*>(row)[d];
  }
};
struct RowF16 {
  __device__ __forceinline__ static float load(const std::uint8_t* row, int d) {
    return half_value(reinterpret_cast<const std::uint16_t*>(row)[d]);
  }
};
struct RowQ8 {
  __device__ __forceinline__ static float load(const std::uint8_t* row, int d) {
    const std::uint8_t* block = row + d / 32 * kQ8Bytes;
    const auto scale = half_value(*reinterpret_cast<const std::uint16_t*>(block));
    return scale * static_cast<float>(static_cast<std::int8_t>(block[2 + d % 32]));
  }
};

}  // namespace specdec::cuda
