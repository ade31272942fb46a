#include "spec/hidden_rows.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {

void HiddenRows::copy(const Backend& backend, Workspace& ws, std::int32_t i,
                      std::span<const std::int32_t> wanted, float* out) const {
  const auto row = static_cast<std::size_t>(rows[static_cast<std::size_t>(i)]);
  for (const std::int32_t layer : wanted) {
    const auto found = std::ranges::find(layers, layer);
    SPECDEC_CHECK(found != layers.end(), "hidden state ", layer, " was not kept");
    const auto column = static_cast<std::size_t>(found - layers.begin());
    const std::size_t offset = (row * layers.size() + column) * static_cast<std::size_t>(width);
    backend.copy_rows(ws, 1, width, states + offset, width, out, width);
    out += width;
  }
}

}  // namespace specdec
