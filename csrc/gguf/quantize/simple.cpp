// The types of 32 values per block: one scale, and for Q4_1 and Q5_1 one minimum.
#include <cmath>

#include "core/quant_blocks.h"
#include "gguf/quantize/block_row.h"
#include "gguf/quantize/families.h"
#include "gguf/quantize/search.h"

namespace specdec::quantize {
namespace {

constexpr std::size_t kHalfBlock = kBlock / 2;

// u [32] are the stored (unsigned) numbers.
void pack_nibbles(const std::int8_t* u, std::uint8_t* qs) {
  for (std::size_t i = 0; i < kHalfBlock; ++i) {
    qs[i] = static_cast<std::uint8_t>((u[i] & 15) | ((u[i + kHalfBlock] & 15) << 4));
  }
}

void pack_fifth_bits(const std::int8_t* u, std::uint8_t* qh) {
  for (std::size_t i = 0; i < 4; ++i) qh[i] = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    qh[i / 8] = static_cast<std::uint8_t>(qh[i / 8] | (((u[i] >> 4) & 1) << (i % 8)));
  }
}

// Nearest integer, ties away from zero, for |v| < 2^31.
int nearest_half_away(float v) {
  const float magnitude = std::fabs(v);
  const int whole = static_cast<int>(magnitude);
  const int rounded = whole + (magnitude - static_cast<float>(whole) >= 0.5f ? 1 : 0);
  return v < 0 ? -rounded : rounded;
}

// Stored numbers u [32] = q + bias; returns the scale. fitted: the step found by a search.
template <typename W>
HalfBits encode_symmetric(const float* x, W w, float fitted, Range range, int bias,
                          std::int8_t* u) {
  const float xq = moments<kBlock>(x, w, inverse_of(fitted), 0, range).xq;
  const HalfBits d = step_half(unshrunk(fitted, square_sum<kBlock>(x, w), xq));
  assign<kBlock>(x, half_to_float(d), 0, range, u);
  for (std::size_t i = 0; i < kBlock; ++i) u[i] = static_cast<std::int8_t>(u[i] + bias);
  return d;
}

struct ScaleAndMin {
  HalfBits d, m;
};

template <typename W>
ScaleAndMin encode_affine(const float* x, W w, float levels, Grid cut, std::int8_t* u) {
  const Affine fit = fit_affine<kBlock>(x, w, levels, cut);
  const ScaleAndMin stored = {step_half(fit.step), finite_half(-fit.offset)};
  assign<kBlock>(x, half_to_float(stored.d), -half_to_float(stored.m), {0, levels}, u);
  return stored;
}

}  // namespace

void quantize_row_q4_0(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights, [](const float* x, auto w) {
    std::int8_t u[kBlock];
    BlockQ4_0 block;
    float emphasised[kBlock];
    emphasise_large<kBlock>(x, w, emphasised);
    const Range range = {-8, 7};
    const float step = fit_step<kBlock>(x, emphasised, range, {0.65f, 1.15f, 21});
    block.d = encode_symmetric(x, w, step, range, 8, u);
    pack_nibbles(u, block.qs);
    return block;
  });
}

void quantize_row_q4_1(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights, [](const float* x, auto w) {
    std::int8_t u[kBlock];
    BlockQ4_1 block;
    const ScaleAndMin stored = encode_affine(x, w, 15, {-0.03f, 0.15f, 7}, u);
    block.d = stored.d;
    block.m = stored.m;
    pack_nibbles(u, block.qs);
    return block;
  });
}

void quantize_row_q5_0(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights, [](const float* x, auto w) {
    std::int8_t u[kBlock];
    BlockQ5_0 block;
    const Range range = {-16, 15};
    const float step = fit_step<kBlock>(x, w, range, {0.8f, 1.06f, 21});
    block.d = encode_symmetric(x, w, step, range, 16, u);
    pack_nibbles(u, block.qs);
    pack_fifth_bits(u, block.qh);
    return block;
  });
}

void quantize_row_q5_1(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights, [](const float* x, auto w) {
    std::int8_t u[kBlock];
    BlockQ5_1 block;
    const ScaleAndMin stored = encode_affine(x, w, 31, {-0.015f, 0.06f, 7}, u);
    block.d = stored.d;
    block.m = stored.m;
    pack_nibbles(u, block.qs);
    pack_fifth_bits(u, block.qh);
    return block;
  });
}

// The plain rule: the largest value becomes 127. At 8 bits a search gains next to nothing, nor do
// weights, and this way the bytes are those of llama.cpp and of the gguf package
// (quantize_row_q8_0_ref, quants.py).
void quantize_row_q8_0(const float* src, std::byte* dst, std::size_t n, const float*) {
  encode_row<kBlock>(src, dst, n, nullptr, [](const float* x, auto) {
    const float d = std::fabs(largest<kBlock>(x)) / 127.0f;
    const float inverse = inverse_of(d);
    BlockQ8_0 block;
    block.d = finite_half(d);
    for (std::size_t i = 0; i < kBlock; ++i) {
      block.qs[i] = static_cast<std::int8_t>(nearest_half_away(x[i] * inverse));
    }
    return block;
  });
}

}  // namespace specdec::quantize
