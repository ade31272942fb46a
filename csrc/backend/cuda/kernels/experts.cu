// A mixture of experts: which experts a row goes to (expert_rule.h), the order in which products
// take the rows, and the weighted sum of what the experts gave. The host knows none of it.
#include "backend/expert_rule.h"

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChooseThreads = 128;

// Elements [0, i) of `values` that are not 0.
__device__ __forceinline__ int count_before(const int* values, int i) {
  int count = 0;
  for (int j = 0; j < i; ++j) count += values[j] != 0;
  return count;
}

// choose_experts of a row by a thread block: an expert is used if fewer than `used` precede it, and
// its place among the used ones is the number of those with lower ids. Terms of the softmax are
// added by ascending id. grid: rows. logits [rows, X]; ids, weights [rows, used]
__global__ void __launch_bounds__(kChooseThreads)
    choose(int experts, int used, bool softmax_of_used, float scale, const float* logits, int* ids,
           float* weights) {
  SPECDEC_SHARED(float, scores, [kMaxExperts]);  // logits, then terms of the softmax
  SPECDEC_SHARED(int, chosen, [kMaxExperts]);
  SPECDEC_SHARED(float, sum, [1]);
  SPECDEC_SHARED(float, largest, [1]);
  const int thread = static_cast<int>(threadIdx.x);
  logits += static_cast<std::size_t>(blockIdx.x) * experts;
  ids += static_cast<std::size_t>(blockIdx.x) * used;
  weights += static_cast<std::size_t>(blockIdx.x) * used;
  for (int e = thread; e < experts; e += kChooseThreads) scores[e] = logits[e];
  __syncthreads();
  for (int e = thread; e < experts; e += kChooseThreads) {
    int before = 0;
    for (int other = 0; other < experts; ++other) {
      before += expert_precedes(scores[other], other, scores[e], e);
    }
    chosen[e] = before < used;
    if (before == 0) largest[0] = scores[e];
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kChooseThreads)
    scores[e] = exp_f32(scores[e] - largest[0]);
  __syncthreads();
  if (thread == 0) {
    float total = 0.0f;
    for (int e = 0; e < experts; ++e) {
      if (chosen[e] != 0 || !softmax_of_used) total = total + scores[e];
    }
    sum[0] = total;
  }
  __syncthreads();
  for (int e = thread; e < experts; e += kChooseThreads) {
    if (chosen[e] == 0) continue;
    const int place = count_before(chosen, e);
    ids[place] = e;
    weights[place] = scores[e] / sum[0] * scale;
  }
}

// The columns of a pass's turns [rows, used]: ordered by expert, then by row; those of an expert
// begin an octet. One thread block; each expert's turns are found by one thread, so their order is
// certain. ids [turns] -> parts [columns.parts], sources [columns.count], places [turns]: the
// column of each turn
__global__ void __launch_bounds__(kThreads)
    share_out(int turns, int used, int experts, const int* ids, Columns columns,
              MatrixColumns* parts, ExpertColumn* sources, int* places) {
  SPECDEC_SHARED(int, counts, [kMaxExperts]);
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < experts; e += kThreads) {
    int count = 0;
    for (int turn = 0; turn < turns; ++turn) count += ids[turn] == e;
    counts[e] = count;
  }
  __syncthreads();
  // Columns and parts of the experts [0, end).
  const auto taken = [&](int end) {
    int octets = 0;
    for (int e = 0; e < end; ++e) octets += octets_of(counts[e]);
    return octets * kOctet;
  };
  for (int e = thread; e < experts; e += kThreads) {
    if (counts[e] == 0) continue;
    const int first = taken(e);
    int next = first;
    for (int turn = 0; turn < turns; ++turn) {
      if (ids[turn] != e) continue;
      sources[next] = {turn / used, e};
      places[turn] = next++;
    }
    parts[count_before(counts, e)] = {e, first, next};
    for (; next % kOctet != 0; ++next) sources[next] = {};
  }
  const int count = taken(experts), busy = count_before(counts, experts);
  for (int i = busy + thread; i < columns.parts; i += kThreads) parts[i] = {};
  for (int i = count + thread; i < columns.count; i += kThreads) sources[i] = {};
}

// out[i, k] = the sum over j of (y[places[i, j], k] + bias[ids[i, j], k]) * weights[i, j], a fused
// multiply-add each, from 0. cols: of x and y
__global__ void __launch_bounds__(kThreads)
    combine(std::int64_t count, int used, int cols, const float* y, const int* places,
            const int* ids, const float* weights, const float* bias, float* out) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::int64_t first = i / cols * used, k = i % cols;
  float sum = 0.0f;
  for (std::int64_t turn = first; turn < first + used; ++turn) {
    float value = y[static_cast<std::int64_t>(places[turn]) * cols + k];
    if (bias != nullptr) value = value + bias[static_cast<std::int64_t>(ids[turn]) * cols + k];
    sum = fmaf(value, weights[turn], sum);
  }
  out[i] = sum;
}

}  // namespace

void queue_choose_experts(StreamHandle stream, int rows, int experts, int used,
                          bool softmax_of_used, float scale, const float* logits, int* ids,
                          float* weights) {
  launch("choose_experts", choose, {static_cast<unsigned>(rows)}, kChooseThreads, 0, stream,
         experts, used, softmax_of_used, scale, logits, ids, weights);
}

void queue_share_out(StreamHandle stream, int turns, int used, int experts, const int* ids,
                     const Columns& columns, MatrixColumns* parts, ExpertColumn* sources,
                     int* places) {
  launch("share_out", share_out, {1}, kThreads, 0, stream, turns, used, experts, ids, columns,
         parts, sources, places);
}

void queue_combine_experts(StreamHandle stream, int rows, int used, int cols, const float* y,
                           const int* places, const int* ids, const float* weights,
                           const float* bias, float* out) {
  const std::int64_t count = static_cast<std::int64_t>(rows) * cols;
  launch("combine_experts", combine, {blocks_for(static_cast<std::size_t>(count), kThreads)},
         kThreads, 0, stream, count, used, cols, y, places, ids, weights, bias, out);
}

}  // namespace specdec::cuda
