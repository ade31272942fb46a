// What the kernels of self_test.cu read and write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/runtime.h"

namespace specdec::cuda {

inline constexpr int kSelfTestStart = 0x4b400000;  // of the sums: far from zero
inline constexpr int kSelfTestGroups = 7;          // of copies
inline constexpr std::size_t kSelfTestValues = 65536;

struct SelfTestArrays {
  std::int8_t* a = nullptr;        // [16, 32]
  std::int8_t* b = nullptr;        // [8, 32], column by column
  int* products = nullptr;         // [16, 8] = start + a b
  int* half_products = nullptr;    // [2, 16, 8]: of k below 16, of the others
  int* dots = nullptr;             // [32]: of a[0] and b[0] of each lane
  float* sums = nullptr;           // [32]: of a[0, lane] over the lane's half warp
  std::uint8_t* source = nullptr;  // [kSelfTestGroups, 32, 16]
  std::uint8_t* copied = nullptr;  // the same
  float* halves = nullptr;         // [kSelfTestValues]: half i
  float* x = nullptr;              // [kSelfTestValues]
  float* exps = nullptr;           // exp_f32(x)
  float* roots = nullptr;          // 1 / sqrt(x * x + 1)
  float* fused = nullptr;          // fma(x, x, x) + x * x
};
void queue_self_test(StreamHandle stream, const SelfTestArrays& arrays);

}  // namespace specdec::cuda
