// Q2_K, Q4_K and Q5_K: 256 values in sub-blocks, each with a small integer scale and minimum of its
// own: value = d * scale * q - dmin * min.
#include <algorithm>
#include <limits>

#include "core/quant_blocks.h"
#include "gguf/quantize/block_row.h"
#include "gguf/quantize/families.h"
#include "gguf/quantize/search.h"

namespace specdec::quantize {
namespace {

// N values in a sub-block; q in [0, levels]; scales and mins in [0, scale_max].
struct AffineShape {
  float levels;
  int scale_max;
  Grid cut;
};

template <std::size_t N>
struct AffineSuper {
  static constexpr std::size_t kSubs = kSuperBlock / N;
  HalfBits d = 0, dmin = 0;
  int scale[kSubs] = {}, min[kSubs] = {};
  float error = std::numeric_limits<float>::max();
};

// The scale and min of sub-block j near those wished for whose real error is smallest.
template <std::size_t N, typename W>
void choose_integers(const float* x, W w, const Affine& wish, const AffineShape& shape,
                     AffineSuper<N>& super, std::size_t j) {
  const float d = half_to_float(super.d), dmin = half_to_float(super.dmin);
  const auto near = [&](float value, float unit) {
    return static_cast<int>(
        nearest(clamped(value * inverse_of(unit), 0, static_cast<float>(shape.scale_max))));
  };
  const int scale = near(wish.step, d), min = near(wish.offset, dmin);
  float best = std::numeric_limits<float>::max();
  for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, shape.scale_max); ++s) {
    for (int m = std::max(min - 1, 0); m <= std::min(min + 1, shape.scale_max); ++m) {
      const float error = squared_error<N>(x, w, d * static_cast<float>(s),
                                           dmin * static_cast<float>(m), {0, shape.levels});
      if (error < best) {
        best = error;
        super.scale[j] = s;
        super.min[j] = m;
      }
    }
  }
  super.error += best;
}

// The d and dmin that are best for the integers chosen, or the old ones where they are
// undetermined.
template <std::size_t N, typename W>
void refit_units(const float* x, W w, const AffineShape& shape, AffineSuper<N>& super) {
  const float d = half_to_float(super.d), dmin = half_to_float(super.dmin);
  double ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
  for (std::size_t j = 0; j < AffineSuper<N>::kSubs; ++j) {
    const float* sub = x + j * N;
    const double s = super.scale[j], m = super.min[j];
    const float step = d * static_cast<float>(super.scale[j]);
    const float offset = dmin * static_cast<float>(super.min[j]);
    const Moments sums = moments<N>(sub, w + j * N, inverse_of(step), offset, {0, shape.levels});
    float total = 0;
    for (std::size_t i = 0; i < N; ++i) total += w[j * N + i] * sub[i];
    ss += s * s * sums.qq;
    sm += s * m * sums.q;
    mm += m * m * static_cast<double>(weight_sum<N>(w + j * N));
    xs += s * sums.xq;
    xm += m * total;
  }
  const double det = ss * mm - sm * sm;
  if (det > 1e-6 * ss * mm) {
    super.d = step_half(static_cast<float>((xs * mm - sm * xm) / det));
    super.dmin = step_half(static_cast<float>((sm * xs - ss * xm) / det));
  } else if (ss > 0 && mm == 0) {
    super.d = step_half(static_cast<float>(xs / ss));
  }
}

// The best affine quantisation whose offset the type can hold: it must not be negative.
template <std::size_t N, typename W>
Affine fit_sub_block(const float* x, W w, const AffineShape& shape) {
  const Affine fit = fit_affine<N>(x, w, shape.levels, shape.cut);
  if (fit.offset >= 0) return fit;
  const float step = fit_step<N>(x, w, {0, shape.levels}, {0.7f, 1.1f, 9});
  return {std::max(step, 0.0f), 0};
}

// x [256]
template <std::size_t N, typename W>
AffineSuper<N> fit_super(const float* x, W w, const AffineShape& shape) {
  constexpr std::size_t kSubs = AffineSuper<N>::kSubs;
  constexpr int kRounds = 3;
  Affine wish[kSubs];
  float top_step = 0, top_offset = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    wish[j] = fit_sub_block<N>(x + j * N, w + j * N, shape);
    top_step = std::max(top_step, wish[j].step);
    top_offset = std::max(top_offset, wish[j].offset);
  }
  AffineSuper<N> super, best;
  super.d = step_half(top_step / static_cast<float>(shape.scale_max));
  super.dmin = step_half(top_offset / static_cast<float>(shape.scale_max));
  for (int round = 0; round < kRounds; ++round) {
    super.error = 0;
    for (std::size_t j = 0; j < kSubs; ++j)
      choose_integers<N>(x + j * N, w + j * N, wish[j], shape, super, j);
    if (super.error < best.error) best = super;
    if (round + 1 < kRounds) refit_units<N>(x, w, shape, super);
  }
  return best;
}

// The super-block with the length that it has in x (`unshrunk`): both units grow alike.
template <std::size_t N, typename W>
void lengthen(const float* x, W w, const AffineShape& shape, AffineSuper<N>& super) {
  const float d = half_to_float(super.d), dmin = half_to_float(super.dmin);
  float xy = 0;
  for (std::size_t j = 0; j < AffineSuper<N>::kSubs; ++j) {
    const float* sub = x + j * N;
    const float step = d * static_cast<float>(super.scale[j]);
    const float offset = dmin * static_cast<float>(super.min[j]);
    const Moments sums = moments<N>(sub, w + j * N, inverse_of(step), offset, {0, shape.levels});
    float total = 0;
    for (std::size_t i = 0; i < N; ++i) total += w[j * N + i] * sub[i];
    xy += step * sums.xq - offset * total;
  }
  const float factor = unshrunk(1, square_sum<kSuperBlock>(x, w), xy);
  super.d = step_half(d * factor);
  super.dmin = step_half(dmin * factor);
}

// q [256] of the chosen quantisation.
template <std::size_t N>
void assign_super(const float* x, const AffineShape& shape, const AffineSuper<N>& super,
                  std::int8_t* q) {
  const float d = half_to_float(super.d), dmin = half_to_float(super.dmin);
  for (std::size_t j = 0; j < AffineSuper<N>::kSubs; ++j) {
    assign<N>(x + j * N, d * static_cast<float>(super.scale[j]),
              dmin * static_cast<float>(super.min[j]), {0, shape.levels}, q + j * N);
  }
}

std::uint8_t byte(int value) { return static_cast<std::uint8_t>(value); }

template <typename W>
BlockQ2_K encode_q2_k(const float* x, W w) {
  const AffineShape shape = {3, 15, {-0.1f, 0.3f, 6}};
  AffineSuper<16> super = fit_super<16>(x, w, shape);
  lengthen(x, w, shape, super);
  std::int8_t q[kSuperBlock];
  assign_super(x, shape, super, q);
  BlockQ2_K block = {};
  block.d = super.d;
  block.dmin = super.dmin;
  for (std::size_t j = 0; j < 16; ++j) block.scales[j] = byte(super.scale[j] | super.min[j] << 4);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    std::uint8_t& packed = block.qs[i / 128 * 32 + i % 32];
    packed = byte(packed | q[i] << (2 * (i % 128 / 32)));
  }
  return block;
}

// Eight scales and mins of 6 bits: the inverse of k_scale_min (core/dequantize.cpp).
void pack_scales(const AffineSuper<32>& super, std::uint8_t* scales) {
  for (std::size_t k = 0; k < 4; ++k) {
    scales[k] = byte(super.scale[k] | (super.scale[k + 4] >> 4) << 6);
    scales[k + 4] = byte(super.min[k] | (super.min[k + 4] >> 4) << 6);
    scales[k + 8] = byte((super.scale[k + 4] & 15) | (super.min[k + 4] & 15) << 4);
  }
}

void pack_low_nibbles(const std::int8_t* q, std::uint8_t* qs) {
  for (std::size_t i = 0; i < kSuperBlock / 2; ++i) {
    const std::size_t first = i / 32 * 64 + i % 32;
    qs[i] = byte((q[first] & 15) | (q[first + 32] & 15) << 4);
  }
}

template <typename W>
BlockQ4_K encode_q4_k(const float* x, W w) {
  const AffineShape shape = {15, 63, {-0.03f, 0.15f, 7}};
  const AffineSuper<32> super = fit_super<32>(x, w, shape);
  std::int8_t q[kSuperBlock];
  assign_super(x, shape, super, q);
  BlockQ4_K block = {};
  block.d = super.d;
  block.dmin = super.dmin;
  pack_scales(super, block.scales);
  pack_low_nibbles(q, block.qs);
  return block;
}

template <typename W>
BlockQ5_K encode_q5_k(const float* x, W w) {
  const AffineShape shape = {31, 63, {-0.015f, 0.06f, 7}};
  const AffineSuper<32> super = fit_super<32>(x, w, shape);
  std::int8_t q[kSuperBlock];
  assign_super(x, shape, super, q);
  BlockQ5_K block = {};
  block.d = super.d;
  block.dmin = super.dmin;
  pack_scales(super, block.scales);
  pack_low_nibbles(q, block.qs);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    block.qh[i % 32] = byte(block.qh[i % 32] | (q[i] >> 4) << (i / 32));
  }
  return block;
}

}  // namespace

void quantize_row_q2_k(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_q2_k(x, w); });
}

void quantize_row_q4_k(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_q4_k(x, w); });
}

void quantize_row_q5_k(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_q5_k(x, w); });
}

}  // namespace specdec::quantize
