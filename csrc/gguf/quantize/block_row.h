// Walks a row block by block; dst may be unaligned.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "gguf/quantize/search.h"

namespace specdec::quantize {

// The weights of a block, scaled so that their mean is 1, which changes no choice. None is less
// than a ten-thousandth: a column that was never used must not be lost altogether, nor all be zero.
template <std::size_t N>
void block_weights(const float* weights, float* w) {
  constexpr float kLeast = 1e-4f;
  double sum = 0;
  for (std::size_t i = 0; i < N; ++i) sum += static_cast<double>(weights[i]);
  const double mean = sum / static_cast<double>(N);
  for (std::size_t i = 0; i < N; ++i) {
    const double scaled = mean > 0 ? static_cast<double>(weights[i]) / mean : 1.0;
    w[i] = std::max(static_cast<float>(scaled), kLeast);
  }
}

// encode(const float* x, w) -> Block, x [N] within +-kLargest, w [N]. weights [n]: of the columns,
// finite and not negative; nullptr: all equal.
template <std::size_t N, typename Encode>
void encode_row(const float* src, std::byte* dst, std::size_t n, const float* weights,
                const Encode& encode) {
  for (std::size_t i = 0; i < n; i += N) {
    float x[N];
    for (std::size_t j = 0; j < N; ++j) x[j] = clamped(src[i + j], -kLargest, kLargest);
    decltype(encode(x, EqualWeights{})) block;
    if (weights == nullptr) {
      block = encode(x, EqualWeights{});
    } else {
      float w[N];
      block_weights<N>(weights + i, w);
      block = encode(x, static_cast<const float*>(w));
    }
    std::memcpy(dst, &block, sizeof block);
    dst += sizeof block;
  }
}

}  // namespace specdec::quantize
