// From the rows of a pass to what the backend's operations share of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/kv_cache.h"
#include "model/rope.h"

namespace specdec {

// One sequence's part of a pass. Rows are appended at the end of `cache`.
struct PassInput {
  KvCache* cache = nullptr;
  std::span<const TokenId> tokens;        // [rows]
  std::span<const std::int32_t> parents;  // [rows], see backend.h Segment; empty = a chain
  const DrawnToken* drawn = nullptr;      // of tokens below 0, see backend.h; one array for a pass
};

// The host-side arrays of a pass and the Pass that points into them.
struct PassPlan {
  // vocab_rows: known token ids must be below.
  PassPlan(std::span<const PassInput> inputs, std::int32_t vocab_rows);
  PassPlan(const PassPlan&) = delete;
  PassPlan& operator=(const PassPlan&) = delete;

  // Makes the pass one of a span of layers: segments point into that `part` of the inputs' caches,
  // and the backend is told.
  void enter(std::size_t part, std::span<const PassInput> inputs, const Backend& backend,
             Workspace& ws);
  // The rotary angles of all rows, [M, rope_dims / 2, 2], into `out`, backend memory. local: those
  // of the layers with a window.
  void fill_angles(const Backend& backend, Workspace& ws, const ModelRope& rope, bool local,
                   Buffer& out) const;
  // 1 + growth * log(1 + floor(position / length)) of all rows, [M], into `out`, backend memory.
  void fill_query_scales(const Backend& backend, Workspace& ws, double growth, std::int32_t length,
                         Buffer& out) const;

  std::vector<TokenId> tokens;          // [M]
  std::vector<std::int32_t> positions;  // [M]
  std::vector<std::int32_t> parents;    // [M], segment-local
  std::vector<Segment> segments;
  Pass pass;

 private:
  void append_segment(const PassInput& input);
};

}  // namespace specdec
