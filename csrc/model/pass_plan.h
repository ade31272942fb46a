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
};

// The host-side arrays of a pass and the Pass that points into them.
struct PassPlan {
  // vocab_rows: token ids must be below.
  PassPlan(std::span<const PassInput> inputs, std::int32_t vocab_rows);
  PassPlan(const PassPlan&) = delete;
  PassPlan& operator=(const PassPlan&) = delete;

  // Fills in the rotary angles: `rope` [M, rope_dims / 2, 2], backend memory.
  void set_angles(const Backend& backend, const RopeTable& table, Buffer& rope);

  std::vector<TokenId> tokens;          // [M]
  std::vector<std::int32_t> positions;  // [M]
  std::vector<std::int32_t> parents;    // [M], segment-local
  std::vector<Segment> segments;
  Pass pass;

 private:
  void append_segment(const PassInput& input);
};

}  // namespace specdec
