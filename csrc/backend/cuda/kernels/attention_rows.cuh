// What the kernels of attention share: which positions a row sees, and how results are merged.
#pragma once

#include "backend/attention_rule.h"
#include "backend/cuda/device_code.h"
#include "backend/cuda/kernels/kernels.h"
#include "core/math.h"

namespace specdec::cuda {

struct Softmax {
  float max, sum;
};

// What a merge multiplies the two sides by.
struct MergeScales {
  float old, chunk;
};

__device__ __forceinline__ int positions_of(const AttentionSegment& s, int row) {
  return s.base + (s.paths == nullptr ? row + 1 : s.lengths[row]);
}

// The first position that a row sees.
__device__ __forceinline__ int first_seen(const AttentionSegment& s, int row) {
  const int behind = positions_of(s, row) - s.window;
  return s.window == 0 || behind < 0 ? 0 : behind;
}

// The positions of the chunk that starts at `first` which the row sees, relative to its start.
struct Seen {
  int begin, end;
  __device__ bool none() const { return begin >= end; }
};
__device__ __forceinline__ Seen seen_of_chunk(const AttentionSegment& s, int row, int first) {
  const int left = positions_of(s, row) - first, before = first_seen(s, row) - first;
  return {before < 0 ? 0 : before, left < kAttentionChunk ? left : kAttentionChunk};
}

// Does the row see any of chunks [from, end)?
__device__ __forceinline__ bool sees(const AttentionSegment& s, int row, int from, int end) {
  return positions_of(s, row) > from * kAttentionChunk &&
         first_seen(s, row) < end * kAttentionChunk;
}

// max = max(a.max, b.max), old = exp(a.max - max), chunk = exp(b.max - max);
// sum = fma(b.sum, chunk, a.sum * old). Values follow: acc = fma(acc_b, chunk, acc_a * old).
__device__ __forceinline__ Softmax merge_chunk(Softmax a, Softmax b, MergeScales* scales) {
  const float max = a.max > b.max ? a.max : b.max;
  *scales = {exp_f32(a.max - max), exp_f32(b.max - max)};
  return {max, fmaf(b.sum, scales->chunk, a.sum * scales->old)};
}

// An element of a query's result, from the weighted values of all chunks.
__device__ __forceinline__ float finish(const AttentionSegment& s, int head, Softmax state,
                                        float acc) {
  if (s.sinks == nullptr) return acc / state.sum;
  // A sink counts as one more chunk, with the weight exp(0) and the value zero.
  MergeScales scales;
  const Softmax all = merge_chunk(state, {s.sinks[head], 1.0f}, &scales);
  return fmaf(0.0f, scales.chunk, acc * scales.old) / all.sum;
}

}  // namespace specdec::cuda
