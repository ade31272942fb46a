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

  // Copies the states of the i-th row of `wanted` layers, all of them kept, to out [wanted, E]. ws:
  // that of the pass; a reader on another one has to be ordered behind it (Backend::order).
  void copy(const Backend& backend, Workspace& ws, std::int32_t i,
            std::span<const std::int32_t> wanted, float* out) const;
};

}  // namespace specdec
