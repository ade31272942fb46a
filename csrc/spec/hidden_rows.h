// Hidden states of the target for rows of a pass that have become part of its cache: what drafting
// heads are fed with.
#pragma once

#include <cstdint>
#include <span>

#include "backend/backend.h"

namespace specdec {

struct HiddenRows {
  std::int32_t first_position = 0;       // in the text, of the first row; the others follow
  std::span<const std::int32_t> rows;    // rows of the pass, ascending
  std::span<const std::int32_t> layers;  // what was kept of each, see PassOptions::capture
  std::int32_t width = 0;                // E
  const float* states = nullptr;         // [rows of the pass, layers, E], backend memory

  std::int32_t size() const { return static_cast<std::int32_t>(rows.size()); }

  // Copies the states of the i-th row of `wanted` layers, all of them kept, to out [wanted, E].
  void copy(const Backend& backend, Workspace& ws, std::int32_t i,
            std::span<const std::int32_t> wanted, float* out) const;
};

// Waits until what copy() wrote to `copied` is there. The heads read it on a workspace of their
// own, and only operations of one workspace take effect in order.
void wait_for_copies(const Backend& backend, Workspace& ws, const float* copied);

}  // namespace specdec
