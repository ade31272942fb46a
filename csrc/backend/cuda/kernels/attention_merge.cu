// Attention's second half where blocks of attention.cu left the results of units, each a span or a
// chunk: those of a span are merged in order, then the spans, then the sink.
#include "backend/cuda/kernels/attention_rows.cuh"
#include "backend/cuda/kernels/quantize.cuh"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 128;

// A result so far, with one element of its weighted values.
struct Merged {
  Softmax state;
  float acc;
  __device__ void merge(Softmax other, float other_acc) {
    MergeScales scales;
    state = merge_chunk(state, other, &scales);
    acc = fmaf(other_acc, scales.chunk, acc * scales.old);
  }
};

// Element d of a row and head: the units of a span in order, then the spans. units [units, 2 + D]
__device__ __forceinline__ Merged merge_units(const AttentionSegment& s, int row,
                                              const float* units, int d) {
  const std::size_t stride = static_cast<std::size_t>(2 + s.head_dim);
  const int chunks = (positions_of(s, row) + kAttentionChunk - 1) / kAttentionChunk;
  const int last = (chunks + s.unit_chunks - 1) / s.unit_chunks;
  const int span_units = kSpanChunks / s.unit_chunks;
  const int from = first_seen(s, row) / kAttentionChunk / s.unit_chunks;
  Merged all{}, span{};
  int first = from;  // unit of the span
  for (int unit = from; unit < last; ++unit) {
    const float* partial = units + unit * stride;
    const Softmax state{partial[0], partial[1]};
    if (unit == first) {
      span = {state, partial[2 + d]};
    } else {
      span.merge(state, partial[2 + d]);
    }
    const int next = (unit / span_units + 1) * span_units;
    if (unit + 1 < next && unit + 1 < last) continue;
    if (first == from) {
      all = span;
    } else {
      all.merge(span.state, span.acc);
    }
    first = next;
  }
  return all;
}

// The units of one row and head, merged. grid: (rows, H); with `quantized`, as many rows as its
// octets have columns
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
  const float* units = s.partials + query * s.units * static_cast<std::size_t>(2 + s.head_dim);
  for (int d = static_cast<int>(threadIdx.x); d < s.head_dim; d += kThreads) {
    const Merged merged = merge_units(s, row, units, d);
    const float value = finish(s, static_cast<int>(blockIdx.y), merged.state, merged.acc);
    s.out[query * s.head_dim + d] = value;
    if (s.quantized.values != nullptr) {
      store_quantized(s.quantized, row, (first + d) / kBlockValues, value);
    }
  }
}

}  // namespace

void queue_attention_merge(StreamHandle stream, const AttentionSegment& s) {
  const int rows = s.quantized.values == nullptr ? s.rows : octets_of(s.rows) * kOctet;
  launch("merge_chunks", merge_chunks,
         {static_cast<unsigned>(rows), static_cast<unsigned>(s.heads), 1}, kThreads, 0, stream, s);
}

}  // namespace specdec::cuda
