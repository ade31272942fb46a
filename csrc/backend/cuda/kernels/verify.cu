// The walk from the pending token down the proposal's tree: greedy and coupled nodes stand if the
// target chose their token; `rejection` as accept_rule.h says, siblings in order, each against what
// its elders left. One thread block; every thread follows the same path.
#include "backend/accept_rule.h"
#include "backend/cuda/kernels/row_filter.cuh"
#include "backend/cuda/kernels/sampling_types.h"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

// What is left of a row's target distribution after the siblings rejected so far. Until the first
// rejection the shares are the target's masses.
struct Remaining {
  const float* weight;    // [vocab]
  std::uint64_t total;    // of the masses
  std::uint64_t* shares;  // [vocab]
  int vocab;
  std::uint64_t left;
  bool copied = false;

  __device__ std::uint64_t share(int id) const {
    if (id < 0 || id >= vocab) return 0;
    return copied ? shares[id] : weight_to_mass(weight[id]);
  }

  __device__ void copy_shares() {
    if (copied) return;
    for_each_id(vocab, [&](int id) { shares[id] = weight_to_mass(weight[id]); });
    copied = true;
    __syncthreads();
  }

  // A rejected deterministic token only loses its own share.
  __device__ void remove_token(int token) {
    if (token < 0 || token >= vocab) return;
    copy_shares();
    left -= shares[token];
    __syncthreads();
    if (threadIdx.x == 0) shares[token] = 0;
    __syncthreads();
  }

  // A rejected token that was drawn from `draft`: max(0, target - draft) of 62-bit probabilities.
  __device__ void subtract(const DistributionView& draft) {
    if (left == 0) return;
    copy_shares();
    Mass sum = 0;
    for_each_id(vocab, [&](int id) {
      shares[id] = residual_mass(fixed_probability(shares[id], left),
                                 fixed_probability(weight_to_mass(draft.weight[id]), draft.total));
      sum += shares[id];
    });
    left = sum_block(sum);
  }
};

// The first id, ascending, at which the running sum of mass(id) exceeds the threshold. Each thread
// sums a run of ids; a serial scan of the sums finds the run.
template <typename MassOf>
__device__ __forceinline__ int id_at(int vocab, std::uint64_t threshold, const MassOf& mass) {
  SPECDEC_SHARED(Mass, sums, [kRowThreads]);
  const int thread = static_cast<int>(threadIdx.x), run = (vocab + kRowThreads - 1) / kRowThreads;
  const int begin = thread * run, end = begin + run < vocab ? begin + run : vocab;
  Mass sum = 0;
  for (int id = begin; id < end; ++id) sum += mass(id);
  __syncthreads();
  sums[thread] = sum;
  __syncthreads();
  Mass running = 0;
  for (int i = 0; i < thread; ++i) running += sums[i];
  int found = kNoToken;
  if (running <= threshold) {
    for (int id = begin; id < end && found == kNoToken; ++id) {
      running += mass(id);
      if (running > threshold) found = id;
    }
  }
  found = min_block(found);
  return found == kNoToken ? 0 : found;
}

// The recovered token. Nothing is left only where rounding rejected what the exact rule accepts:
// then from the target itself.
__device__ __forceinline__ int draw_remaining(const Remaining& remaining, std::uint64_t bits) {
  const bool exhausted = remaining.left == 0;
  const std::uint64_t threshold =
      draw_threshold(bits, exhausted ? remaining.total : remaining.left);
  return id_at(remaining.vocab, threshold, [&](int id) {
    return static_cast<Mass>(exhausted ? weight_to_mass(remaining.weight[id])
                                       : remaining.share(id));
  });
}

// Null for a deterministic node. A row without mass cannot have been drawn from: deterministic.
__device__ __forceinline__ const DistributionView* draft_of(const TreeView& tree, int node) {
  const int row = tree.prob_rows == nullptr ? -1 : tree.prob_rows[node];
  return row < 0 || tree.drafts[row].total == 0 ? nullptr : &tree.drafts[row];
}

struct Step {
  int child, next;  // the child that stands, or -1 and the token that ends the walk
};

__device__ __forceinline__ Step step_rejection(const RowsView& rows, const TreeView& tree,
                                               const WalkRule& rule, std::uint64_t* shares,
                                               int node, std::uint64_t position) {
  const float* weight = rows.weight + static_cast<std::size_t>(node + 1) * rows.vocab;
  const std::uint64_t total = rows.totals[node + 1];
  Remaining remaining{weight, total, shares, rows.vocab, total};
  std::uint32_t sibling = 0;
  for (int i = node + 1; i < tree.nodes; ++i) {
    if (tree.parents[i] != node || tree.tokens[i] < 0) continue;
    const double coin =
        u64_to_unit(random_u64({rule.seed, position, RngPurpose::kAccept, sibling++}));
    const int token = tree.tokens[i];
    const DistributionView* draft = draft_of(tree, i);
    const bool known = draft != nullptr && token >= 0 && token < rows.vocab;
    const double draft_prob = known ? probability(*draft, token) : 1.0;
    if (accepts(coin, remaining.share(token), remaining.left, draft_prob)) return {i, 0};
    if (draft == nullptr) {
      remaining.remove_token(token);
    } else {
      remaining.subtract(*draft);
    }
  }
  __syncthreads();  // the shares are complete
  if (sibling == 0) {
    return {-1, race_of_row(weight, rows.vocab, rule.seed, position, RngPurpose::kTargetDraw)};
  }
  return {-1,
          draw_remaining(remaining, random_u64({rule.seed, position, RngPurpose::kTargetDraw, 0}))};
}

__device__ __forceinline__ Step follow(const TreeView& tree, int node, int token) {
  for (int i = node + 1; i < tree.nodes; ++i) {
    if (tree.parents[i] == node && tree.tokens[i] == token) return {i, token};
  }
  return {-1, token};
}

// One thread block.
__global__ void __launch_bounds__(kWarpLanes) look_up_drawn(TreeView tree) {
  for (int i = static_cast<int>(threadIdx.x); i < tree.nodes; i += kWarpLanes) {
    if (tree.tokens[i] >= 0) continue;
    const DrawnToken drawn = tree.drawn[place_of(tree.tokens[i])];
    tree.tokens[i] = drawn.token;
    const int row = tree.prob_rows == nullptr ? -1 : tree.prob_rows[i];
    if (row >= 0) tree.drafts[row].total = drawn.total;
  }
}

__global__ void __launch_bounds__(kRowThreads)
    walk(RowsView rows, TreeView tree, WalkRule rule, std::uint64_t* shares, int* result) {
  int accepted = 0, next = 0;
  for (int node = -1;;) {
    const Step step = rule.rejection && !rule.greedy
                          ? step_rejection(rows, tree, rule, shares, node,
                                           rule.position + static_cast<std::uint64_t>(accepted))
                          : follow(tree, node, rows.chosen[node + 1]);
    if (step.child < 0) {
      next = step.next;
      break;
    }
    if (threadIdx.x == 0) result[2 + accepted] = step.child;
    ++accepted;
    node = step.child;
    __syncthreads();  // before the shares are written again
  }
  if (threadIdx.x == 0) {
    result[0] = next;
    result[1] = accepted;
  }
  for (int i = static_cast<int>(threadIdx.x); i < tree.nodes; i += kRowThreads) {
    result[2 + tree.nodes + i] = tree.tokens[i];
  }
}

}  // namespace

void queue_look_up_drawn(StreamHandle stream, const TreeView& tree) {
  launch("look_up_drawn", look_up_drawn, {}, kWarpLanes, 0, stream, tree);
}

void queue_walk(StreamHandle stream, const RowsView& rows, const TreeView& tree,
                const WalkRule& rule, std::uint64_t* shares, int* result) {
  launch("walk", walk, {}, kRowThreads, 0, stream, rows, tree, rule, shares, result);
}

}  // namespace specdec::cuda
