// Quantised rows back to float32, bit for bit what the `gguf` Python package's NumPy code gives
// (gguf-py quants.py): the same float operations in the same order. Used by the ref backend, by
// embedding lookups and by tests; the fast kernels have their own decoding.
#pragma once

#include <cstddef>

#include "core/dtype.h"

namespace specdec {

// dst[i] = value i of the row. src: row_bytes(dtype, n) bytes at any alignment; dst [n]; n is a
// multiple of the type's block size.
void dequantize_row(DType dtype, const std::byte* src, float* dst, std::size_t n);

}  // namespace specdec
