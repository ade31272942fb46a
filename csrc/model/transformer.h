// THE forward pass, written once over the backend's operations.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "core/cancel.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/pass_plan.h"

namespace specdec {

// Which rows of a pass get logits: the last `count` of them.
struct LogitRows {
  std::int32_t count = 0;
};

// What a pass does other than running all layers.
struct PassOptions {
  // Layers to run, ascending; empty = all. A layer that is left out writes no rows to the cache:
  // only a pass over the same layers may follow before the cache is cut back.
  std::span<const std::int32_t> layers;
  // Hidden states to keep of every row, in Activations::captured: i < L stands for what layer i
  // reads from the residual stream, L for what the last layer leaves there. Ascending.
  std::span<const std::int32_t> capture;
};

// The activations of a pass, reused from pass to pass; grow-only.
class Activations {
 public:
  explicit Activations(const Backend& backend);

  // Room for `rows` rows of a pass of this model, `logit_rows` of them with logits.
  void reserve(const ModelConfig& config, std::int32_t rows, std::int32_t logit_rows);
  // Room for `states` hidden states of each of `rows` rows.
  void reserve_captured(const Model& model, std::int32_t rows, std::int32_t states);
  std::size_t bytes() const;
  // Grows whenever a buffer moves.
  std::int64_t generation() const { return generation_; }

  Workspace& workspace() { return *workspace_; }
  const Workspace& workspace() const { return *workspace_; }

  std::unique_ptr<Buffer> hidden;        // [M, E] the residual stream
  std::unique_ptr<Buffer> normed;        // [M, E]
  std::unique_ptr<Buffer> branch;        // [M, E] what a block adds to the residual stream
  std::unique_ptr<Buffer> query;         // [M, H, D]
  std::unique_ptr<Buffer> attention;     // [M, H, D]
  std::unique_ptr<Buffer> rope;          // [M, rope_dims / 2, 2]
  std::unique_ptr<Buffer> local_rope;    // the same for layers with a window, where it differs
  std::unique_ptr<Buffer> query_scales;  // [M], where queries grow with their position
  std::unique_ptr<Buffer> shared;        // [M, E] and [M] of a shared expert
  std::unique_ptr<Buffer> shared_gate;
  std::unique_ptr<Buffer> logits;    // [logit rows, V]
  std::unique_ptr<Buffer> captured;  // [M, states, E], see PassOptions::capture

 private:
  const Backend& backend_;
  std::unique_ptr<Workspace> workspace_;
  std::int32_t rows_ = 0, logit_rows_ = 0;
  std::int64_t generation_ = 0;
};

// Runs one pass over the inputs' rows. Writes their keys and values behind each cache's length and
// lengthens the caches. activations: one for each span of the model; logits [logit_rows.count, V]
// and captured states are left in the last one.
// Returns false, with the caches' lengths unchanged, if `cancel` was set between two layers.
bool forward(const Model& model, std::span<Activations> activations,
             std::span<const PassInput> inputs, LogitRows logit_rows, const CancelFlag* cancel,
             const PassOptions& options = {});

}  // namespace specdec
