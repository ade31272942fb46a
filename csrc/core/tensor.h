// A view of a tensor in host memory as it lies in a file: no ownership.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace specdec {

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::size_t> shape;   // outermost first, as NumPy: a matrix is [N out, K in]
  const std::byte* data = nullptr;  // `bytes` bytes, rows contiguous; alignment is not promised
  std::size_t bytes = 0;
  bool mapped = false;  // lies in a MappedFile: release_mapped_pages may be called on it

  // [N, K] of a matrix; a vector [K] counts as one row.
  std::size_t rows() const {
    std::size_t n = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
  std::size_t cols() const { return shape.empty() ? 1 : shape.back(); }
  // X of a stack [X, N, K] of matrices.
  std::size_t matrices() const { return shape.size() == 3 ? shape.front() : 1; }

  // Rows [first, first + count) of a matrix, or elements of a vector.
  TensorView slice(std::size_t first, std::size_t count) const {
    const std::size_t whole = shape.empty() ? 1 : shape.front();
    TensorView part = *this;
    part.shape.front() = count;
    part.data = data + first * (bytes / whole);
    part.bytes = count * (bytes / whole);
    return part;
  }
};

}  // namespace specdec
