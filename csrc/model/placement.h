// Which backend runs which layers of a model.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace specdec {

// Consecutive layers [first, end) on one backend.
struct LayerSpan {
  std::shared_ptr<const Backend> backend;
  std::int32_t first = 0, end = 0;

  std::int32_t size() const { return end - first; }
};

// What a model is loaded with: everything on one backend, or its first layers there and the other
// layers with the output head on another, so that the residual stream crosses once per pass.
class Placement {
 public:
  explicit Placement(std::shared_ptr<const Backend> backend) : first_(std::move(backend)) {}
  // `layers` of the model on `first`, the rest on `rest`; -1 or more than there are: all of it on
  // `first`.
  Placement(std::shared_ptr<const Backend> first, std::shared_ptr<const Backend> rest,
            std::int32_t layers)
      : first_(std::move(first)), rest_(std::move(rest)), layers_(layers) {}

  // The spans of a model of so many layers, in order. The head is on the last one's backend; that
  // span has no layers where the head alone is.
  std::vector<LayerSpan> spans(std::int32_t total) const {
    if (layers_ < 0 || layers_ > total || rest_ == nullptr) return {{first_, 0, total}};
    if (layers_ == 0) return {{rest_, 0, total}};
    return {{first_, 0, layers_}, {rest_, layers_, total}};
  }

 private:
  std::shared_ptr<const Backend> first_, rest_;
  std::int32_t layers_ = -1;
};

}  // namespace specdec
