// Attention over the contiguous cache, in chunks of 64 logical positions from 0: the cached prefix,
// then the row's ancestors in depth order, then itself. For each query head and chunk:
//   score[t] = scale * dot(q, k[t])          16 lanes over D, fma, tree; then its cap
//   max = the largest; weight[t] = exp(score[t] - max)
//   sum = sum of weight[t]                   16 lanes over t, tree
//   acc[d] = fma(weight[t], v[t][d], acc[d]) serial over t
// and chunks are merged in order (merge_chunk). A block either sees all chunks of its queries, or
// one chunk, whose result a second kernel merges: the operations are the same.
#include "backend/cuda/kernels/cache_rows.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/quantize.cuh"
#include "backend/cuda/launch.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHalfWarps = kThreads / kVirtualLanes;
// Queries (row, head of the group) of one block: what shares a read of keys and values.
constexpr int kQueries = 8;

struct Softmax {
  float max, sum;
};

// What a merge multiplies the two sides by.
struct MergeScales {
  float old, chunk;
};

// One block's queries and their shared memory.
struct Tile {
  int kv_head, first, count;          // queries [first, first + count) of [rows, group]
  int group;                          // query heads per kv head
  float (*q)[kMaxHeadDim];            // [kQueries]
  float (*weights)[kAttentionChunk];  // [kQueries]
  Softmax* state;                     // [kQueries] of the chunks so far
  MergeScales* scales;                // [kQueries] of the merge with this chunk
};

__device__ __forceinline__ int row_of(const Tile& tile, int query) {
  return (tile.first + query) / tile.group;
}

// Offset of the query's vector in q and out [rows, H, D], in vectors.
__device__ __forceinline__ std::size_t query_index(const AttentionSegment& s, const Tile& tile,
                                                   int query) {
  const int row = row_of(tile, query), g = (tile.first + query) % tile.group;
  return static_cast<std::size_t>(row) * s.heads + tile.kv_head * tile.group + g;
}

__device__ __forceinline__ int positions_of(const AttentionSegment& s, int row) {
  return s.base + (s.paths == nullptr ? row + 1 : s.lengths[row]);
}

// The cache row of a logical position of `row`.
__device__ __forceinline__ int cache_row(const AttentionSegment& s, int row, int position) {
  if (s.paths == nullptr || position < s.base) return position;
  return s.base + s.paths[static_cast<std::size_t>(row) * s.rows + (position - s.base)];
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

// The first chunk that any row of the tile sees.
__device__ __forceinline__ int first_chunk_of(const AttentionSegment& s, const Tile& tile) {
  int least = s.chunks;
  for (int query = 0; query < tile.count; ++query) {
    const int chunk = first_seen(s, row_of(tile, query)) / kAttentionChunk;
    least = chunk < least ? chunk : least;
  }
  return least;
}

// Scores of queries [begin, end), which see the same cache rows as far as they see: each key is
// read once, by half a warp. kSteps: ceil(D / 16) at most.
template <class Row, int kSteps>
__device__ __forceinline__ void score_keys(const AttentionSegment& s, const Tile& tile, int begin,
                                           int end, int first, int most) {
  const int lane = static_cast<int>(threadIdx.x) % kVirtualLanes;
  const std::uint8_t* keys = s.keys + tile.kv_head * s.head_stride;
  // All half warps take the same number of turns: the sum is a collective of whole warps.
  for (int turn = 0; turn < most; turn += kHalfWarps) {
    const int t = turn + static_cast<int>(threadIdx.x) / kVirtualLanes;
    float key[kSteps] = {};
    if (t < most) {
      const int at = cache_row(s, row_of(tile, begin), first + t);
      const std::uint8_t* row = keys + static_cast<std::int64_t>(at) * s.row_bytes;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int d = i * kVirtualLanes + lane;
        key[i] = d < s.head_dim ? Row::load(row, d) : 0.0f;
      }
    }
    for (int query = begin; query < end; ++query) {
      float sum = 0.0f;
      if (t < most) {
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int d = i * kVirtualLanes + lane;
          if (d < s.head_dim) sum = fmaf(tile.q[query][d], key[i], sum);
        }
      }
      const float dot = sum_16_lanes(sum);
      if (lane == 0 && t < most) {
        const float score = s.scale * dot;
        tile.weights[query][t] =
            s.score_cap == 0.0f ? score : s.score_cap * tanh_f32(score / s.score_cap);
      }
    }
  }
}

// max = max(a.max, b.max), old = exp(a.max - max), chunk = exp(b.max - max);
// sum = fma(b.sum, chunk, a.sum * old). Values follow: acc = fma(acc_b, chunk, acc_a * old).
__device__ __forceinline__ Softmax merge_chunk(Softmax a, Softmax b, MergeScales* scales) {
  const float max = a.max > b.max ? a.max : b.max;
  *scales = {exp_f32(a.max - max), exp_f32(b.max - max)};
  return {max, fmaf(b.sum, scales->chunk, a.sum * scales->old)};
}

// Scores become weights, and the state that of the chunks so far; one warp per query in turn.
// `only`: this is the only chunk that the block sees.
__device__ __forceinline__ void softmax_chunk(const AttentionSegment& s, const Tile& tile,
                                              int begin, int end, int first, bool only) {
  const int lane = lane_of_warp();
  for (int query = begin + warp_of_block(); query < end; query += kThreads / kWarpLanes) {
    const Seen seen = seen_of_chunk(s, row_of(tile, query), first);
    if (seen.none()) continue;  // the whole warp
    float* weights = tile.weights[query] + seen.begin;
    const int count = seen.end - seen.begin;
    float max = weights[0];
    for (int t = lane; t < count; t += kWarpLanes) max = weights[t] > max ? weights[t] : max;
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
      const float other = __shfl_xor_sync(kFullWarp, max, apart);
      max = other > max ? other : max;
    }
    __syncwarp();  // all have read: a shuffle does not order memory
    float sum = 0.0f;
    if (lane < kVirtualLanes) {
      for (int t = lane; t < count; t += kVirtualLanes) {
        const float weight = exp_f32(weights[t] - max);
        weights[t] = weight;
        sum = sum + weight;
      }
    }
    sum = sum_16_lanes(sum);
    if (lane != 0) continue;
    const Softmax chunk{max, sum};
    const bool fresh = only || first_seen(s, row_of(tile, query)) >= first;
    tile.state[query] = fresh ? chunk : merge_chunk(tile.state[query], chunk, &tile.scales[query]);
  }
}

// acc[query] of element d over the chunk, each value read once for queries [begin, end).
template <class Row>
__device__ __forceinline__ void weighted_values(const AttentionSegment& s, const Tile& tile,
                                                int begin, int end, int first, int most, int d,
                                                float* acc) {
  const std::uint8_t* values = s.values + tile.kv_head * s.head_stride;
  Seen seen[kQueries];
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    acc[i] = 0.0f;
    seen[i] = i < end - begin ? seen_of_chunk(s, row_of(tile, begin + i), first) : Seen{0, 0};
  }
  for (int t = 0; t < most; ++t) {
    const int at = cache_row(s, row_of(tile, begin), first + t);
    const float value = Row::load(values + static_cast<std::int64_t>(at) * s.row_bytes, d);
#pragma unroll
    for (int i = 0; i < kQueries; ++i) {
      if (t >= seen[i].begin && t < seen[i].end)
        acc[i] = fmaf(tile.weights[begin + i][t], value, acc[i]);
    }
  }
}

// Element d of a chunk's result: merged into `out`, or left for the merge kernel.
// `fresh`: the first one that the row sees.
__device__ __forceinline__ void keep_result(const AttentionSegment& s, std::size_t query, int chunk,
                                            bool fresh, int d, Softmax state, MergeScales scales,
                                            float acc) {
  if (s.partials != nullptr) {
    float* partial = s.partials + (query * s.chunks + chunk) * (2 + s.head_dim);
    if (d == 0) {
      partial[0] = state.max;
      partial[1] = state.sum;
    }
    partial[2 + d] = acc;
    return;
  }
  float* out = s.out + query * s.head_dim + d;
  *out = fresh ? acc : fmaf(acc, scales.chunk, *out * scales.old);
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

// grid: (tiles of queries, Hkv, chunks or 1): neighbours read the same keys and values
template <class Row, int kSteps>
__global__ void __launch_bounds__(kThreads, 4) attend(AttentionSegment s) {
  SPECDEC_SHARED(float, q, [kQueries][kMaxHeadDim]);
  SPECDEC_SHARED(float, weights, [kQueries][kAttentionChunk]);
  SPECDEC_SHARED(Softmax, state, [kQueries]);
  SPECDEC_SHARED(MergeScales, scales, [kQueries]);
  s.base = *s.base_at;
  const bool split = s.partials != nullptr;
  // More chunks than there are: no row sees this one.
  if (split && static_cast<int>(blockIdx.z) * kAttentionChunk >= s.base + s.rows) return;
  const int thread = static_cast<int>(threadIdx.x), group = s.heads / s.kv_heads;
  Tile tile{static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.x) * kQueries,
            0,
            group,
            q,
            weights,
            state,
            scales};
  const int left = s.rows * group - tile.first;
  tile.count = left < kQueries ? left : kQueries;
  for (int query = 0; query < tile.count; ++query) {
    const float* from = s.q + query_index(s, tile, query) * s.head_dim;
    for (int d = thread; d < s.head_dim; d += kThreads) q[query][d] = from[d];
  }
  const int first_chunk = split ? static_cast<int>(blockIdx.z) : first_chunk_of(s, tile);
  const int last_chunk = split ? first_chunk + 1 : s.chunks;
  for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int first = chunk * kAttentionChunk;
    // Queries of different rows share the reads unless a tree put their positions elsewhere.
    const bool shared = s.paths == nullptr || first + kAttentionChunk <= s.base;
    const int step = shared ? tile.count : 1;
    __syncthreads();
    for (int begin = 0; begin < tile.count; begin += step) {
      const int end = begin + step;
      int most = 0;
      for (int i = begin; i < end; ++i) {
        const Seen seen = seen_of_chunk(s, row_of(tile, i), first);
        most = !seen.none() && seen.end > most ? seen.end : most;
      }
      score_keys<Row, kSteps>(s, tile, begin, end, first, most);
      __syncthreads();
      softmax_chunk(s, tile, begin, end, first, split);
      __syncthreads();
      for (int d = thread; d < s.head_dim; d += kThreads) {
        float acc[kQueries];
        weighted_values<Row>(s, tile, begin, end, first, most, d, acc);
#pragma unroll
        for (int i = 0; i < kQueries; ++i) {
          if (i >= step) continue;
          const int row = row_of(tile, begin + i);
          if (seen_of_chunk(s, row, first).none()) continue;
          keep_result(s, query_index(s, tile, begin + i), chunk, first_seen(s, row) >= first, d,
                      state[begin + i], scales[begin + i], acc[i]);
        }
      }
    }
  }
  if (split) return;
  __syncthreads();
  for (int query = 0; query < tile.count; ++query) {
    float* out = s.out + query_index(s, tile, query) * s.head_dim;
    const int head = tile.kv_head * group + (tile.first + query) % group;
    for (int d = thread; d < s.head_dim; d += kThreads)
      out[d] = finish(s, head, state[query], out[d]);
  }
}

// The chunks of one row and head, merged in order. grid: (rows, H); with `quantized`, as many rows
// as its octets have columns
__global__ void __launch_bounds__(kThreads) merge_chunks(AttentionSegment s) {
  s.base = *s.base_at;
  const int row = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y) * s.head_dim;
  if (row >= s.rows) {  // the whole block: zeros fill up the octet
    for (int d = static_cast<int>(threadIdx.x); d < s.head_dim; d += kThreads) {
      store_quantized(s.quantized, row, (first + d) / kBlockValues, 0.0f);
    }
    return;
  }
  const std::size_t query = static_cast<std::size_t>(row) * s.heads + blockIdx.y;
  const int chunks = (positions_of(s, row) + kAttentionChunk - 1) / kAttentionChunk;
  const std::size_t stride = static_cast<std::size_t>(2 + s.head_dim);
  const float* partials = s.partials + query * s.chunks * stride;
  for (int d = static_cast<int>(threadIdx.x); d < s.head_dim; d += kThreads) {
    const int from = first_seen(s, row) / kAttentionChunk;
    Softmax state{partials[from * stride], partials[from * stride + 1]};
    float acc = partials[from * stride + 2 + d];
    for (int chunk = from + 1; chunk < chunks; ++chunk) {
      const float* partial = partials + chunk * stride;
      MergeScales scales;
      state = merge_chunk(state, {partial[0], partial[1]}, &scales);
      acc = fmaf(partial[2 + d], scales.chunk, acc * scales.old);
    }
    const float value = finish(s, static_cast<int>(blockIdx.y), state, acc);
    s.out[query * s.head_dim + d] = value;
    if (s.quantized.values != nullptr) {
      store_quantized(s.quantized, row, (first + d) / kBlockValues, value);
    }
  }
}

template <class Row>
void launch_attend(StreamHandle stream, const AttentionSegment& s, Grid grid) {
  if (s.head_dim <= 64) {
    launch("attend", attend<Row, 4>, grid, kThreads, 0, stream, s);
  } else if (s.head_dim <= 128) {
    launch("attend", attend<Row, 8>, grid, kThreads, 0, stream, s);
  } else {
    launch("attend", attend<Row, kMaxHeadDim / kVirtualLanes>, grid, kThreads, 0, stream, s);
  }
}

}  // namespace

void queue_attention(StreamHandle stream, const AttentionSegment& s) {
  const bool split = s.partials != nullptr;
  const std::size_t queries = static_cast<std::size_t>(s.rows) * (s.heads / s.kv_heads);
  const Grid grid{blocks_for(queries, kQueries), static_cast<unsigned>(s.kv_heads),
                  split ? static_cast<unsigned>(s.chunks) : 1u};
  switch (s.dtype) {
    case DType::kF32:
      launch_attend<RowF32>(stream, s, grid);
      break;
    case DType::kF16:
      launch_attend<RowF16>(stream, s, grid);
      break;
    case DType::kQ8_0:
      launch_attend<RowQ8>(stream, s, grid);
      break;
    default:
      throw InternalError("unknown cache type");
  }
  if (split) {
    const int rows = s.quantized.values == nullptr ? s.rows : octets_of(s.rows) * kOctet;
    launch("merge_chunks", merge_chunks,
           {static_cast<unsigned>(rows), static_cast<unsigned>(s.heads), 1}, kThreads, 0, stream,
           s);
  }
}

}  // namespace specdec::cuda
