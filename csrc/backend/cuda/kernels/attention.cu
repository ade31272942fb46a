// Attention over the contiguous cache, in chunks of 64 logical positions from 0: the cached prefix,
// then the row's ancestors in depth order, then itself. For each query head and chunk:
//   score[t] = scale * dot(q, k[t])          16 lanes over D, fma, tree; then its cap
//   max = the largest; weight[t] = exp(score[t] - max)
//   sum = sum of weight[t]                   16 lanes over t, tree
//   acc[d] = fma(weight[t], v[t][d], acc[d]) serial over t
// The chunks of a span are merged in order, then the spans (merge_chunk). A block works on up to
// four chunks of a span at a time, by a group of threads each, and merges them in order in shared
// memory. It sees all chunks of its queries, or one unit (a span or a chunk), whose result a second
// kernel merges: the operations are the same.
#include "backend/cuda/kernels/attention_rows.cuh"
#include "backend/cuda/kernels/cache_rows.cuh"
#include "backend/cuda/launch.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// Threads that work on one chunk together: a group. No block has 1,024, because a thread needs some
// 100 registers: a span is done in two rounds.
constexpr int kThreads = 128;
constexpr int kHalfWarps = kThreads / kVirtualLanes;
constexpr int kMostGroups = 4;
static_assert(kSpanChunks % kMostGroups == 0);
// Queries (row, head of the group) of one block: what shares a read of keys and values.
constexpr int kQueries = kAttentionTile;
// So many groups keep a large device busy.
constexpr unsigned kBusyGroups = 512;

// One block's queries and their shared memory. kDims: D at most.
template <int kDims>
struct Tile {
  int kv_head, first, count;  // queries [first, first + count) of [rows, heads of a kv head]
  int heads;                  // query heads per kv head
  float (*q)[kDims];          // [kQueries]
  float (*acc)[kDims];        // [kQueries] of the span so far
  float (*weights)[kAttentionChunk];  // [kQueries] of this thread's group
  Softmax (*chunk)[kQueries];         // [groups] of the round
  MergeScales (*scales)[kQueries];    // [groups] of the merges with their chunks
  Softmax* span;                      // [kQueries] of the span so far
  Softmax* all;                       // [kQueries] of the spans so far
  MergeScales* span_scales;           // [kQueries] of the merge with the last span
};

__device__ __forceinline__ int group_of_block() { return static_cast<int>(threadIdx.x) / kThreads; }
__device__ __forceinline__ int thread_of_group() {
  return static_cast<int>(threadIdx.x) % kThreads;
}
__device__ __forceinline__ int groups_of_block() { return static_cast<int>(blockDim.x) / kThreads; }

template <int kDims>
__device__ __forceinline__ int row_of(const Tile<kDims>& tile, int query) {
  return (tile.first + query) / tile.heads;
}

// Offset of the query's vector in q and out [rows, H, D], in vectors.
template <int kDims>
__device__ __forceinline__ std::size_t query_index(const AttentionSegment& s,
                                                   const Tile<kDims>& tile, int query) {
  const int row = row_of(tile, query), head = (tile.first + query) % tile.heads;
  return static_cast<std::size_t>(row) * s.heads + tile.kv_head * tile.heads + head;
}

// The cache row of a logical position of `row`.
__device__ __forceinline__ int cache_row(const AttentionSegment& s, int row, int position) {
  if (s.paths == nullptr || position < s.base) return position;
  return s.base + s.paths[static_cast<std::size_t>(row) * s.rows + (position - s.base)];
}

// The first chunk that any row of the tile sees.
template <int kDims>
__device__ __forceinline__ int first_chunk_of(const AttentionSegment& s, const Tile<kDims>& tile) {
  int least = s.chunks;
  for (int query = 0; query < tile.count; ++query) {
    const int chunk = first_seen(s, row_of(tile, query)) / kAttentionChunk;
    least = chunk < least ? chunk : least;
  }
  return least;
}

// Scores of queries [begin, end), which see the same cache rows as far as they see, in the group's
// chunk: each key is read once, by half a warp. kDims: D at most.
template <class Row, int kDims>
__device__ __forceinline__ void score_keys(const AttentionSegment& s, const Tile<kDims>& tile,
                                           int begin, int end, int first, int most) {
  constexpr int kSteps = kDims / kVirtualLanes;
  const int lane = static_cast<int>(threadIdx.x) % kVirtualLanes;
  const std::uint8_t* keys = s.keys + tile.kv_head * s.head_stride;
  // All half warps of a group take the same number of turns: the sum is a collective of whole
  // warps.
  for (int turn = 0; turn < most; turn += kHalfWarps) {
    const int t = turn + thread_of_group() / kVirtualLanes;
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

// Scores become weights: those of the group's chunk, one warp per query in turn.
template <int kDims>
__device__ __forceinline__ void softmax_chunk(const AttentionSegment& s, const Tile<kDims>& tile,
                                              int begin, int end, int first) {
  const int lane = lane_of_warp();
  const int warp = thread_of_group() / kWarpLanes;
  for (int query = begin + warp; query < end; query += kThreads / kWarpLanes) {
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
    if (lane == 0) tile.chunk[group_of_block()][query] = {max, sum};
  }
}

// Merges the chunks of a round, which begins at chunk `round`, into a query's span; `from`: the
// first of its chunks that the block sees. One thread per query; the scales wait for fold_chunk.
template <int kDims>
__device__ __forceinline__ void merge_round(const AttentionSegment& s, const Tile<kDims>& tile,
                                            int query, int round, int from, int end) {
  const int row = row_of(tile, query);
  Softmax span = tile.span[query];
  for (int chunk_at = round; chunk_at < end && chunk_at < round + groups_of_block(); ++chunk_at) {
    const int first = chunk_at * kAttentionChunk, group = chunk_at - round;
    if (seen_of_chunk(s, row, first).none()) continue;
    const Softmax chunk = tile.chunk[group][query];
    const bool fresh = chunk_at == from || first_seen(s, row) >= first;
    span = fresh ? chunk : merge_chunk(span, chunk, &tile.scales[group][query]);
  }
  tile.span[query] = span;
}

// acc[query] of element d over the group's chunk, each value read once for queries [begin, end).
template <class Row, int kDims>
__device__ __forceinline__ void weighted_values(const AttentionSegment& s, const Tile<kDims>& tile,
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

// Element d of the group's chunk is merged into the span of queries [begin, end): the groups come
// one after the other.
template <int kDims>
__device__ __forceinline__ void fold_chunk(const AttentionSegment& s, const Tile<kDims>& tile,
                                           int begin, int end, int chunk, int from, int d,
                                           const float* acc) {
  const int first = chunk * kAttentionChunk;
#pragma unroll
  for (int i = 0; i < kQueries; ++i) {
    const int query = begin + i;
    if (query >= end || seen_of_chunk(s, row_of(tile, query), first).none()) continue;
    const bool fresh = chunk == from || first_seen(s, row_of(tile, query)) >= first;
    const MergeScales scales = tile.scales[group_of_block()][query];
    float& span = tile.acc[query][d];
    span = fresh ? acc[i] : fmaf(acc[i], scales.chunk, span * scales.old);
  }
}

// Chunks [round, round + groups) of a span whose chunks [from, end) the block sees, one per group.
template <class Row, int kDims>
__device__ __forceinline__ void attend_round(const AttentionSegment& s, const Tile<kDims>& tile,
                                             int round, int from, int end) {
  const int chunk = round + group_of_block(), first = chunk * kAttentionChunk;
  // Queries of different rows share the reads unless a tree put their positions elsewhere.
  const int behind = round + groups_of_block() < end ? round + groups_of_block() : end;
  const bool shared = s.paths == nullptr || behind * kAttentionChunk <= s.base;
  const int step = shared ? tile.count : 1;
  for (int begin = 0; begin < tile.count; begin += step) {
    int most = 0;
    for (int i = begin; i < begin + step && chunk < end; ++i) {
      const Seen seen = seen_of_chunk(s, row_of(tile, i), first);
      most = !seen.none() && seen.end > most ? seen.end : most;
    }
    score_keys<Row>(s, tile, begin, begin + step, first, most);
    __syncthreads();
    if (most > 0) softmax_chunk(s, tile, begin, begin + step, first);
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < step) {
      merge_round(s, tile, begin + static_cast<int>(threadIdx.x), round, from, end);
    }
    for (int turn = 0; turn < s.head_dim; turn += kThreads) {
      const int d = turn + thread_of_group();
      float acc[kQueries];
      if (d < s.head_dim) weighted_values<Row>(s, tile, begin, begin + step, first, most, d, acc);
      for (int group = 0; group < groups_of_block(); ++group) {
        __syncthreads();
        if (group == group_of_block() && most > 0 && d < s.head_dim) {
          fold_chunk(s, tile, begin, begin + step, chunk, from, d, acc);
        }
      }
    }
  }
}

// The first span that a row sees begins its result; the others are merged into it. One thread per
// query; the scales wait for leave_span.
template <int kDims>
__device__ __forceinline__ void merge_span(const AttentionSegment& s, const Tile<kDims>& tile,
                                           int query, int from, int end) {
  const int row = row_of(tile, query);
  if (!sees(s, row, from, end)) return;
  const bool fresh = first_seen(s, row) >= from * kAttentionChunk;
  const Softmax span = tile.span[query];
  tile.all[query] = fresh ? span : merge_chunk(tile.all[query], span, &tile.span_scales[query]);
}

// Chunks [from, end), a span or a unit, are done: left for the merge kernel, or merged into `out`.
template <int kDims>
__device__ __forceinline__ void leave_span(const AttentionSegment& s, const Tile<kDims>& tile,
                                           int from, int end) {
  for (int query = group_of_block(); query < tile.count; query += groups_of_block()) {
    const int row = row_of(tile, query);
    if (!sees(s, row, from, end)) continue;
    const std::size_t index = query_index(s, tile, query);
    const MergeScales scales = tile.span_scales[query];
    const bool fresh = first_seen(s, row) >= from * kAttentionChunk;
    float* partial = nullptr;
    if (s.partials != nullptr) {
      const std::size_t at = index * s.units + from / s.unit_chunks;
      partial = s.partials + at * (2 + s.head_dim);
      if (thread_of_group() == 0) {
        partial[0] = tile.span[query].max;
        partial[1] = tile.span[query].sum;
      }
    }
    for (int d = thread_of_group(); d < s.head_dim; d += kThreads) {
      const float acc = tile.acc[query][d];
      float* out = s.out + index * s.head_dim + d;
      if (partial != nullptr) {
        partial[2 + d] = acc;
      } else {
        *out = fresh ? acc : fmaf(acc, scales.chunk, *out * scales.old);
      }
    }
  }
}

// grid: (tiles of queries, Hkv, units or 1): neighbours read the same keys and values. Threads: up
// to kMostGroups groups, on which the result does not depend. (One block of all groups is enough
// for a multiprocessor: to fit two, compilers for some architectures spill registers.)
template <class Row, int kDims>
__global__ void __launch_bounds__(kMostGroups* kThreads, 1) attend(AttentionSegment s) {
  SPECDEC_SHARED(float, q, [kQueries][kDims]);
  SPECDEC_SHARED(float, acc, [kQueries][kDims]);
  SPECDEC_SHARED(float, weights, [kMostGroups][kQueries][kAttentionChunk]);
  SPECDEC_SHARED(Softmax, chunk_states, [kMostGroups][kQueries]);
  SPECDEC_SHARED(MergeScales, scales, [kMostGroups][kQueries]);
  SPECDEC_SHARED(Softmax, span_states, [kQueries]);
  SPECDEC_SHARED(Softmax, all_states, [kQueries]);
  SPECDEC_SHARED(MergeScales, span_scales, [kQueries]);
  s.base = *s.base_at;
  const bool split = s.partials != nullptr;
  const int unit = static_cast<int>(blockIdx.z) * s.unit_chunks;
  // More units than there are: no row sees this one.
  const int chunks = (s.base + s.rows + kAttentionChunk - 1) / kAttentionChunk;
  if (split && unit >= chunks) return;
  const int thread = static_cast<int>(threadIdx.x), heads = s.heads / s.kv_heads;
  Tile<kDims> tile{static_cast<int>(blockIdx.y),
                   static_cast<int>(blockIdx.x) * kQueries,
                   0,
                   heads,
                   q,
                   acc,
                   weights[group_of_block()],
                   chunk_states,
                   scales,
                   span_states,
                   all_states,
                   span_scales};
  const int left = s.rows * heads - tile.first;
  tile.count = left < kQueries ? left : kQueries;
  for (int query = group_of_block(); query < tile.count; query += groups_of_block()) {
    const float* from = s.q + query_index(s, tile, query) * s.head_dim;
    for (int d = thread_of_group(); d < s.head_dim; d += kThreads) q[query][d] = from[d];
  }
  __syncthreads();
  const int last = split && unit + s.unit_chunks < chunks ? unit + s.unit_chunks : chunks;
  const int first = first_chunk_of(s, tile);
  int from = split && unit > first ? unit : first;
  while (from < last) {
    const int next = (from / kSpanChunks + 1) * kSpanChunks, end = next < last ? next : last;
    for (int round = from; round < end; round += groups_of_block()) {
      attend_round<Row>(s, tile, round, from, end);
    }
    if (!split && thread < tile.count) merge_span(s, tile, thread, from, end);
    __syncthreads();
    leave_span(s, tile, from, end);
    from = end;
  }
  if (split) return;
  for (int query = group_of_block(); query < tile.count; query += groups_of_block()) {
    float* out = s.out + query_index(s, tile, query) * s.head_dim;
    const int head = tile.kv_head * heads + (tile.first + query) % heads;
    for (int d = thread_of_group(); d < s.head_dim; d += kThreads)
      out[d] = finish(s, head, all_states[query], out[d]);
  }
}

template <class Row>
void launch_attend(StreamHandle stream, const AttentionSegment& s, Grid grid, int threads) {
  if (s.head_dim <= 64) {
    launch("attend", attend<Row, 64>, grid, threads, 0, stream, s);
  } else if (s.head_dim <= 128) {
    launch("attend", attend<Row, 128>, grid, threads, 0, stream, s);
  } else {
    launch("attend", attend<Row, kMaxHeadDim>, grid, threads, 0, stream, s);
  }
}

// Groups of a block: for units, one per chunk of it; else as many as have something to do.
int groups_for(const AttentionSegment& s, const Grid& grid) {
  const int chunks = s.partials != nullptr ? s.unit_chunks : s.chunks;
  const unsigned most = s.partials != nullptr ? kMostGroups : kBusyGroups / (grid.x * grid.y);
  int groups = 1;
  while (groups < kMostGroups && groups < chunks && static_cast<unsigned>(groups) < most) {
    groups *= 2;
  }
  return groups;
}

}  // namespace

void queue_attention(StreamHandle stream, const AttentionSegment& s) {
  const bool split = s.partials != nullptr;
  const std::size_t queries = static_cast<std::size_t>(s.rows) * (s.heads / s.kv_heads);
  const Grid grid{blocks_for(queries, kQueries), static_cast<unsigned>(s.kv_heads),
                  split ? static_cast<unsigned>(s.units) : 1u};
  const int threads = groups_for(s, grid) * kThreads;
  switch (s.dtype) {
    case DType::kF32:
      launch_attend<RowF32>(stream, s, grid, threads);
      break;
    case DType::kF16:
      launch_attend<RowF16>(stream, s, grid, threads);
      break;
    case DType::kQ8_0:
      launch_attend<RowQ8>(stream, s, grid, threads);
      break;
    default:
      throw InternalError("unknown cache type");
  }
  if (split) queue_attention_merge(stream, s);
}

}  // namespace specdec::cuda
