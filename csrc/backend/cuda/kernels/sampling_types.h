// What the sampling kernels are given; plain data, passed by value. Pointers: device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "backend/sampling_rule.h"

namespace specdec::cuda {

// FilterParams as a row needs them: what the host computes once.
struct RowFilter {
  bool greedy = false;
  float inverse_temperature = 1.0f;
  int top_k = 0;
  float typical_p = 1.0f, top_p = 1.0f;
  bool min_p_on = false;
  float min_p_floor = 0.0f;
};

// A proposal's tree. Row i of the logits scores the token after node i - 1.
struct TreeView {
  int nodes = 0;                       // m
  int* tokens = nullptr;               // [m]
  const int* parents = nullptr;        // [m], -1 = pending
  const int* depths = nullptr;         // [m], of a root 0
  const int* prob_rows = nullptr;      // [m], -1 = deterministic; or null
  DistributionView* drafts = nullptr;  // [r]
  const DrawnToken* drawn = nullptr;   // of tokens below 0, see backend.h; or null
};

// Penalties and bias of a request.
struct AdjustmentView {
  bool penalise = false;  // are there penalties?
  PenaltyParams penalties;
  const TokenCount* counts = nullptr;  // ascending ids
  int count = 0;
  const LogitBias* bias = nullptr;
  int bias_count = 0;
};

// Rows of logits and what becomes of them. Arrays of a row: [vocab].
struct RowsView {
  const float* logits = nullptr;  // [rows, row_stride]
  std::int64_t row_stride = 0;
  int rows = 0, vocab = 0;
  const std::uint32_t* mask = nullptr;  // [rows, ceil(vocab / 32)], or null
  float* adjusted = nullptr;            // [rows, vocab] where an adjustment is active
  float* z = nullptr;                   // [rows, vocab]
  float* rank = nullptr;                // [rows, vocab]
  float* weight = nullptr;              // [rows, vocab]
  std::uint64_t* totals = nullptr;      // [rows]
  int* chosen = nullptr;                // [rows]: greedy and coupled, the target's token
};

// The randomness and the rule of a walk.
struct WalkRule {
  bool greedy = false, rejection = false;
  std::uint64_t seed = 0, position = 0;
};

// --- sampling.cu ---

// adjusted [vocab] = logits with penalties and bias; one row after the whole text.
void queue_adjust(StreamHandle stream, const RowsView& rows, const TreeView& tree,
                  const AdjustmentView& adjustment);
// weight, totals of every row (not at temperature 0) and, for greedy and coupled walks, the token
// that the target chooses there.
void queue_choose(StreamHandle stream, const RowsView& rows, const RowFilter& filter,
                  const TreeView& tree, const WalkRule& rule);
// weight and totals of every row.
void queue_filter(StreamHandle stream, const RowsView& rows, const RowFilter& filter);
void queue_draw(StreamHandle stream, const float* weight, int vocab, std::uint64_t seed,
                std::uint64_t position, RngPurpose purpose, int* token);

// The `count` tokens of the largest weights among those with a mass, in no order; fewer where fewer
// have one. ids, values [count]; found: a counter, 0 before
struct HeaviestView {
  int count = 0;
  int* ids = nullptr;
  float* values = nullptr;
  int* found = nullptr;
};
void queue_heaviest(StreamHandle stream, const float* weight, int vocab, const HeaviestView& out);

// The same in order, likeliest first, ties by the lower id: out [count], with *total; an id below 0
// where there are fewer. found: scratch
void queue_rank(StreamHandle stream, const float* weight, int vocab, const std::uint64_t* total,
                const HeaviestView& found, DrawnToken* out);

// The largest logit, the total mass at temperature 1 and the ids of the `count` likeliest tokens,
// in no order. ids [count]; found: a counter, 0 before
struct LikeliestView {
  float* max = nullptr;
  std::uint64_t* total = nullptr;
  int count = 0;
  int* ids = nullptr;
  float* logits = nullptr;  // [count] of the ids, then that of `token`
  int* found = nullptr;
  int token = 0;
};
void queue_likeliest(StreamHandle stream, const RowsView& row, const LikeliestView& out);

// --- verify.cu ---

// Puts what lies in tree.drawn into tokens and into the totals of drafts.
void queue_look_up_drawn(StreamHandle stream, const TreeView& tree);

// Walks the tree from the pending token: result [2 + 2 m] = next token, number of accepted nodes,
// the accepted nodes, from 2 + m on the tokens of all nodes. shares [vocab]: scratch of the
// rejection rule
void queue_walk(StreamHandle stream, const RowsView& rows, const TreeView& tree,
                const WalkRule& rule, std::uint64_t* shares, int* result);

}  // namespace specdec::cuda
