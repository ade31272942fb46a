// What the products with quantised weights share: the stages in which weights come into shared
// memory ahead of their use.
#pragma once

#include "backend/cuda/device_code.h"
#include "backend/cuda/device_instructions.h"
#include "backend/cuda/kernels/product_part.cuh"
#include "backend/cuda/kernels/weight_formats.cuh"

namespace specdec::cuda {

// Shared memory of a thread block that every device has without asking for more.
inline constexpr int kSharedLimit = 48 * 1024;
inline constexpr int kMaxStages = 8;  // copy_async_wait knows up to kMaxStages - 2 pending groups

// Asks for `bytes` bytes, a multiple of 16 and mostly kFull, by kThreads threads, of which this is
// number `thread`.
template <int kFull, int kThreads>
__device__ __forceinline__ void copy_run(std::uint8_t* to, const void* from, int bytes,
                                         int thread) {
  const auto* source = static_cast<const std::uint8_t*>(from);
  const int first = 16 * thread;
  if (bytes == kFull) {
#pragma unroll
    for (int at = 0; at < kFull; at += 16 * kThreads) {
      if (at + first < kFull) copy_async_16(to + at + first, source + at + first);
    }
  } else {
#pragma unroll 1
    for (int at = first; at < bytes; at += 16 * kThreads) copy_async_16(to + at, source + at);
  }
}

// The place after `slot` in a ring of `stages`.
__device__ __forceinline__ int next_slot(int slot, int stages) {
  return slot + 1 == stages ? 0 : slot + 1;
}

// A group of 32 rows in a stage of kBlocks blocks of K: planes, scales, header.
template <class F, int kBlocks, int kThreads>
struct StagedGroup {
  static constexpr int kScalesAt = kBlocks * F::kPlaneBytes;
  static constexpr int kHeaderAt = kScalesAt + kBlocks * F::kScaleBytes;
  static constexpr int kBytes = kHeaderAt + F::kHeaderBytes;

  // Blocks [first, first + count) of a group, by kThreads threads. A stage lies within one
  // superblock.
  __device__ __forceinline__ static void copy(const QuantizedView& w, int group, int first,
                                              int count, std::uint8_t* to, int thread) {
    const std::size_t block = static_cast<std::size_t>(group) * w.blocks + first;
    copy_run<kScalesAt, kThreads>(to, w.planes + block * F::kPlaneBytes, count * F::kPlaneBytes,
                                  thread);
    copy_run<kHeaderAt - kScalesAt, kThreads>(to + kScalesAt, w.scales + block * F::kScaleBytes,
                                              count * F::kScaleBytes, thread);
    if constexpr (F::kHeaderBytes > 0) {
      const std::size_t super =
          static_cast<std::size_t>(group) * (w.blocks / kSubBlocks) + first / kSubBlocks;
      copy_run<F::kHeaderBytes, kThreads>(to + kHeaderAt, w.headers + super * F::kHeaderBytes,
                                          F::kHeaderBytes, thread);
    }
  }
  __device__ __forceinline__ static const std::uint8_t* planes(const std::uint8_t* group, int b) {
    return group + b * F::kPlaneBytes;
  }
  // first: the first block of K of the stage
  __device__ __forceinline__ static RowScales scales(const std::uint8_t* group, int first, int b,
                                                     int row) {
    return F::scales(group + kScalesAt + b * F::kScaleBytes, group + kHeaderAt,
                     (first + b) % kSubBlocks, row);
  }
};

// How many stages of `bytes` fit beside `other` bytes of shared memory.
inline int stages_that_fit(int bytes, int other) {
  const int fitting = (kSharedLimit - other) / bytes;
  return fitting < kMaxStages ? fitting : kMaxStages;
}

// What a format needs of a column's block: all of it in registers, the sums in the places of the
// parts.
struct ColumnTerms {
  float d, sums[2];
};
// halves: read only if the format has minima of halves.
template <class F>
inline constexpr bool kNeedsHalves = F::kMins && F::kHalves;
template <class F>
__device__ __forceinline__ ColumnTerms load_terms(const ColumnScales* scales,
                                                  const ColumnHalves* halves) {
  const ColumnScales both = *scales;
  if constexpr (kNeedsHalves<F>) {
    const ColumnHalves sums = *halves;
    return {both.d, {sums.first, sums.second}};
  }
  return {both.d, {both.sum, 0.0f}};
}

// The terms of one block of K, in the order of backend/README.md: first the dots of each part, then
// the minima. d, m: of the weights' row, by part; dots: exact integers as floats.
template <class F>
__device__ __forceinline__ float add_block(float acc, const float* d, const float* m,
                                           const float* dots, const ColumnTerms& x) {
#pragma unroll
  for (int part = 0; part < F::kParts; ++part) acc = fmaf(d[part] * x.d, dots[part], acc);
  if constexpr (F::kMins) {
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) acc = fmaf(m[part], x.sums[part], acc);
  }
  return acc;
}

}  // namespace specdec::cuda
