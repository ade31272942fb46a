// Rows of logits: penalties and bias, filtered distributions, draws, log-probabilities. One thread
// block per row.
#include "backend/cuda/kernels/row_filter.cuh"
#include "backend/cuda/kernels/sampling_types.h"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

__device__ __forceinline__ RowArrays arrays_of(const RowsView& rows, int r) {
  const auto at = static_cast<std::size_t>(r) * static_cast<std::size_t>(rows.vocab);
  const std::size_t words = (static_cast<std::size_t>(rows.vocab) + 31) / 32;
  RowArrays row;
  row.logits = rows.adjusted != nullptr ? rows.adjusted + at : rows.logits + r * rows.row_stride;
  row.mask = rows.mask == nullptr ? nullptr : rows.mask + r * words;
  row.z = rows.z + at;
  row.rank = rows.rank + at;
  row.weight = rows.weight + at;
  return row;
}

// How often `token` stands on the path from `node` up to the root.
__device__ __forceinline__ int count_on_path(const TreeView& tree, int node, int token) {
  int count = 0;
  for (; node >= 0; node = tree.parents[node]) count += tree.tokens[node] == token ? 1 : 0;
  return count;
}

// Does `token` stand in the ascending counts?
__device__ __forceinline__ bool is_counted(const AdjustmentView& a, int token) {
  int low = 0, high = a.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (a.counts[middle].id < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < a.count && a.counts[low].id == token;
}

// Penalties of one row, which follows `node`: each token once, with the counts of the text and of
// the row's own path. out [vocab]
__device__ __forceinline__ void penalise(const AdjustmentView& a, const TreeView& tree, int node,
                                         int vocab, float* out) {
  for (int i = static_cast<int>(threadIdx.x); i < a.count; i += kRowThreads) {
    const TokenCount entry = a.counts[i];
    const int output = entry.output + count_on_path(tree, node, entry.id);
    out[entry.id] = penalised_logit(out[entry.id], a.penalties, output);
  }
  if (threadIdx.x != 0) return;
  // Tokens of the path that the text does not hold, at their last place on the path only. A row
  // below a token outside of the vocabulary is never reached.
  for (int i = node; i >= 0; i = tree.parents[i]) {
    const int token = tree.tokens[i];
    if (token < 0 || token >= vocab || is_counted(a, token)) continue;
    if (count_on_path(tree, node, token) != count_on_path(tree, i, token)) continue;
    out[token] = penalised_logit(out[token], a.penalties, count_on_path(tree, i, token));
  }
}

// grid: rows
__global__ void __launch_bounds__(kRowThreads)
    adjust(RowsView rows, TreeView tree, AdjustmentView a) {
  const int r = static_cast<int>(blockIdx.x);
  const float* logits = rows.logits + r * rows.row_stride;
  float* out = rows.adjusted + static_cast<std::size_t>(r) * rows.vocab;
  for_each_id(rows.vocab, [&](int id) { out[id] = logits[id]; });
  __syncthreads();
  if (a.penalise) penalise(a, tree, r - 1, rows.vocab, out);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < a.bias_count; i += kRowThreads) {
    out[a.bias[i].id] += a.bias[i].value;
  }
}

// grid: rows
__global__ void __launch_bounds__(kRowThreads) filter_rows(RowsView rows, RowFilter filter) {
  const int r = static_cast<int>(blockIdx.x);
  const Mass total = filter_row(arrays_of(rows, r), rows.vocab, filter);
  if (threadIdx.x == 0) rows.totals[r] = total;
}

// grid: rows
__global__ void __launch_bounds__(kRowThreads)
    choose(RowsView rows, RowFilter filter, TreeView tree, WalkRule rule) {
  const int r = static_cast<int>(blockIdx.x);
  const RowArrays row = arrays_of(rows, r);
  int token;
  if (rule.greedy) {
    token = argmax_of_row(row, rows.vocab, max_of_row(row, rows.vocab));
  } else {
    const Mass total = filter_row(row, rows.vocab, filter);
    if (threadIdx.x == 0) rows.totals[r] = total;
    __syncthreads();
    if (rule.rejection) return;  // the walk draws
    const int depth = r == 0 ? 0 : tree.depths[r - 1] + 1;
    token = race_of_row(row.weight, rows.vocab, rule.seed, rule.position + depth,
                        RngPurpose::kTargetDraw);
  }
  if (threadIdx.x == 0) rows.chosen[r] = token;
}

__global__ void __launch_bounds__(kRowThreads)
    draw(const float* weight, int vocab, std::uint64_t seed, std::uint64_t position,
         RngPurpose purpose, int* token) {
  const int drawn = race_of_row(weight, vocab, seed, position, purpose);
  if (threadIdx.x == 0) *token = drawn;
}

__global__ void __launch_bounds__(kRowThreads)
    heaviest(const float* weight, int vocab, HeaviestView out) {
  const auto key = [&](int id) {
    return weight_to_mass(weight[id]) > 0 ? rank_key(weight[id], id) : 0;
  };
  const std::uint64_t cutoff =
      select_prefix(vocab, static_cast<Mass>(out.count), key, [](int) { return Mass{1}; });
  for_each_id(vocab, [&](int id) {
    if (key(id) == 0 || key(id) < cutoff) return;
    const int place = atomicAdd(out.found, 1);
    out.ids[place] = id;
    out.values[place] = weight[id];
  });
}

// Puts what `heaviest` has found in order: a token's place is the number of those before it. One
// thread block
__global__ void __launch_bounds__(kRowThreads)
    rank(HeaviestView found, const std::uint64_t* total, DrawnToken* out) {
  const int count = *found.found;
  for (int i = static_cast<int>(threadIdx.x); i < found.count; i += kRowThreads) {
    if (i >= count) {
      out[i] = {-1, 0};
      continue;
    }
    int place = 0;
    for (int j = 0; j < count; ++j) {
      place += ranks_before(found.values[j], found.ids[j], found.values[i], found.ids[i]) ? 1 : 0;
    }
    out[place] = {found.ids[i], *total};
  }
}

__global__ void __launch_bounds__(kRowThreads) likeliest(RowsView rows, LikeliestView out) {
  const RowArrays row = arrays_of(rows, 0);
  const float max = max_of_row(row, rows.vocab);
  Mass total = 0;  // without any logit above -infinity
  if (max > negative_infinity()) total = weigh_row(row, rows.vocab, max, 1.0f);
  if (threadIdx.x == 0) {
    *out.max = max;
    *out.total = total;
    out.logits[out.count] = row.logits[out.token];
  }
  if (out.count == 0) return;
  const auto key = [&](int id) { return rank_key(comparable_logit(row.logits[id]), id); };
  const std::uint64_t cutoff =
      select_prefix(rows.vocab, static_cast<Mass>(out.count), key, [](int) { return Mass{1}; });
  for_each_id(rows.vocab, [&](int id) {
    if (key(id) < cutoff) return;
    const int place = atomicAdd(out.found, 1);
    out.ids[place] = id;
    out.logits[place] = row.logits[id];
  });
}

unsigned rows_of(const RowsView& rows) { return static_cast<unsigned>(rows.rows); }

}  // namespace

void queue_adjust(StreamHandle stream, const RowsView& rows, const TreeView& tree,
                  const AdjustmentView& adjustment) {
  launch("adjust", adjust, {rows_of(rows)}, kRowThreads, 0, stream, rows, tree, adjustment);
}

void queue_filter(StreamHandle stream, const RowsView& rows, const RowFilter& filter) {
  launch("filter_rows", filter_rows, {rows_of(rows)}, kRowThreads, 0, stream, rows, filter);
}

void queue_choose(StreamHandle stream, const RowsView& rows, const RowFilter& filter,
                  const TreeView& tree, const WalkRule& rule) {
  launch("choose", choose, {rows_of(rows)}, kRowThreads, 0, stream, rows, filter, tree, rule);
}

void queue_draw(StreamHandle stream, const float* weight, int vocab, std::uint64_t seed,
                std::uint64_t position, RngPurpose purpose, int* token) {
  launch("draw", draw, {}, kRowThreads, 0, stream, weight, vocab, seed, position, purpose, token);
}

void queue_heaviest(StreamHandle stream, const float* weight, int vocab, const HeaviestView& out) {
  launch("heaviest", heaviest, {}, kRowThreads, 0, stream, weight, vocab, out);
}

void queue_rank(StreamHandle stream, const float* weight, int vocab, const std::uint64_t* total,
                const HeaviestView& found, DrawnToken* out) {
  queue_heaviest(stream, weight, vocab, found);
  launch("rank", rank, {}, kRowThreads, 0, stream, found, total, out);
}

void queue_likeliest(StreamHandle stream, const RowsView& row, const LikeliestView& out) {
  launch("likeliest", likeliest, {}, kRowThreads, 0, stream, row, out);
}

}  // namespace specdec::cuda
