// Walks a row block by block; dst may be unaligned.
#pragma once

#include <cstddef>
#include <cstring>

#include "gguf/quantize/search.h"

namespace specdec::quantize {

// encode(const float* x) -> Block, x [N] within +-kLargest.
template <std::size_t N, typename Encode>
void encode_row(const float* src, std::byte* dst, std::size_t n, const Encode& encode) {
  for (std::size_t i = 0; i < n; i += N) {
    float x[N];
    for (std::size_t j = 0; j < N; ++j) x[j] = clamped(src[i + j], -kLargest, kLargest);
    const auto block = encode(x);
    std::memcpy(dst, &block, sizeof block);
    dst += sizeof block;
  }
}

}  // namespace specdec::quantize
