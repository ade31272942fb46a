// float32 rows to the element types of GGUF: the inverse of core/dequantize.h. Deterministic: the
// result depends on the values only. Each block is chosen by least squares (search.h), so the mean
// squared error is at or below that of the plain "scale by the largest value" rule.
#pragma once

#include <cstddef>

#include "core/dtype.h"

namespace specdec {

// dst: row_bytes(dtype, n) bytes at any alignment; src [n], finite; n is a multiple of the type's
// block size. Values that the type cannot reach become its nearest ones, never an infinity.
// weights [n], finite and not negative: how much a squared error counts in each column, relative to
// the others of its block (F32, F16, BF16 and Q8_0 ignore them); nullptr: all equal.
void quantize_row(DType dtype, const float* src, std::byte* dst, std::size_t n,
                  const float* weights = nullptr);

// Index of the first NaN or infinity in values [n], or n.
std::size_t first_not_finite(const float* values, std::size_t n);

}  // namespace specdec
