// How a key or value [D] lies in the cache: floats, halves (round to nearest even), or blocks of 32
// as in a Q8_0 tensor. This is the definition; the kernels of other backends give the same bytes.
//
// A block: amax = max|x|, q = round_to_even(x * (127 / amax)), d = half(amax / 127). One with amax
// < 2^-120 is zero; one with an infinity or NaN has d = NaN.
#pragma once

#include <cstddef>

#include "core/dtype.h"

namespace specdec {

// The types that a cache may have.
bool is_cache_dtype(DType dtype);

// row [n], out: row_bytes(dtype, n)
void store_cache_row(DType dtype, const float* row, std::size_t n, std::byte* out);

}  // namespace specdec
