// Q3_K and Q6_K: 16 sub-blocks of 16 values, each with a small signed integer scale of its own:
// value = d * scale * q.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/quant_blocks.h"
#include "gguf/quantize/block_row.h"
#include "gguf/quantize/families.h"
#include "gguf/quantize/search.h"

namespace specdec::quantize {
namespace {

constexpr std::size_t kSub = 16;
constexpr std::size_t kSubs = kSuperBlock / kSub;

struct SymmetricShape {
  Range range;                // of q
  int scale_low, scale_high;  // |scale_low| > scale_high
  Grid grid;
};

struct SymmetricSuper {
  HalfBits d = 0;
  int scale[kSubs] = {};
  float error = std::numeric_limits<float>::max();
};

// The scale of sub-block j near the one wished for whose real error is smallest.
template <typename W>
void choose_integer(const float* x, W w, float wish, const SymmetricShape& shape,
                    SymmetricSuper& super, std::size_t j) {
  const float d = half_to_float(super.d);
  const int centre =
      static_cast<int>(nearest(clamped(wish * inverse_of(d), static_cast<float>(shape.scale_low),
                                       static_cast<float>(shape.scale_high))));
  float best = std::numeric_limits<float>::max();
  for (int s = std::max(centre - 1, shape.scale_low); s <= std::min(centre + 1, shape.scale_high);
       ++s) {
    const float error = squared_error<kSub>(x, w, d * static_cast<float>(s), 0, shape.range);
    if (error < best) {
      best = error;
      super.scale[j] = s;
    }
  }
  super.error += best;
}

// The d that is best for the scales chosen.
template <typename W>
void refit_unit(const float* x, W w, const SymmetricShape& shape, SymmetricSuper& super) {
  const float d = half_to_float(super.d);
  double qq = 0, xq = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const double s = super.scale[j];
    const float step = d * static_cast<float>(super.scale[j]);
    const Moments sums =
        moments<kSub>(x + j * kSub, w + j * kSub, inverse_of(step), 0, shape.range);
    qq += s * s * sums.qq;
    xq += s * sums.xq;
  }
  if (qq > 0) super.d = step_half(static_cast<float>(xq / qq));
}

// x [256]
template <typename W>
SymmetricSuper fit_super(const float* x, W w, const SymmetricShape& shape) {
  constexpr int kRounds = 3;
  float wish[kSubs];
  float top = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    wish[j] = fit_step<kSub>(x + j * kSub, w + j * kSub, shape.range, shape.grid);
    if (std::fabs(wish[j]) > std::fabs(top)) top = wish[j];
  }
  SymmetricSuper super, best;
  super.d = step_half(top / static_cast<float>(shape.scale_low));
  for (int round = 0; round < kRounds; ++round) {
    super.error = 0;
    for (std::size_t j = 0; j < kSubs; ++j)
      choose_integer(x + j * kSub, w + j * kSub, wish[j], shape, super, j);
    if (super.error < best.error) best = super;
    if (round + 1 < kRounds) refit_unit(x, w, shape, super);
  }
  return best;
}

// The super-block with the length that it has in x (`unshrunk`).
template <typename W>
void lengthen(const float* x, W w, const SymmetricShape& shape, SymmetricSuper& super) {
  const float d = half_to_float(super.d);
  float xq = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const float scale = static_cast<float>(super.scale[j]);
    xq +=
        scale * moments<kSub>(x + j * kSub, w + j * kSub, inverse_of(d * scale), 0, shape.range).xq;
  }
  super.d = step_half(unshrunk(d, square_sum<kSuperBlock>(x, w), xq));
}

// u [256] = q + bias
void assign_super(const float* x, const SymmetricShape& shape, const SymmetricSuper& super,
                  int bias, std::int8_t* u) {
  const float d = half_to_float(super.d);
  for (std::size_t j = 0; j < kSubs; ++j) {
    assign<kSub>(x + j * kSub, d * static_cast<float>(super.scale[j]), 0, shape.range,
                 u + j * kSub);
  }
  for (std::size_t i = 0; i < kSuperBlock; ++i) u[i] = static_cast<std::int8_t>(u[i] + bias);
}

// ORs `bits` into a byte.
void merge(std::uint8_t& packed, int bits) { packed = static_cast<std::uint8_t>(packed | bits); }

template <typename W>
BlockQ3_K encode_q3_k(const float* x, W w) {
  const SymmetricShape shape = {{-4, 3}, -32, 31, {0.55f, 1.2f, 21}};
  float emphasised[kSuperBlock];
  emphasise_large<kSuperBlock>(x, w, emphasised);
  SymmetricSuper super = fit_super(x, emphasised, shape);
  lengthen(x, w, shape, super);
  std::int8_t u[kSuperBlock];
  assign_super(x, shape, super, 4, u);
  BlockQ3_K block = {};
  block.d = super.d;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const int scale = super.scale[j] + 32;
    merge(block.scales[j % 8], (scale & 15) << (4 * (j / 8)));
    merge(block.scales[8 + j % 4], (scale >> 4) << (2 * (j / 4)));
  }
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    merge(block.qs[i / 128 * 32 + i % 32], (u[i] & 3) << (2 * (i % 128 / 32)));
    merge(block.hmask[i % 32], (u[i] >> 2) << (i / 32));
  }
  return block;
}

template <typename W>
BlockQ6_K encode_q6_k(const float* x, W w) {
  const SymmetricShape shape = {{-32, 31}, -128, 127, {0.88f, 1.03f, 16}};
  const SymmetricSuper super = fit_super(x, w, shape);
  std::int8_t u[kSuperBlock];
  assign_super(x, shape, super, 32, u);
  BlockQ6_K block = {};
  block.d = super.d;
  for (std::size_t j = 0; j < kSubs; ++j) {
    block.scales[j] = static_cast<std::int8_t>(super.scale[j]);
  }
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const std::size_t half = i / 128, in_half = i % 128;
    merge(block.ql[half * 64 + in_half % 64], (u[i] & 15) << (in_half < 64 ? 0 : 4));
    merge(block.qh[half * 32 + i % 32], (u[i] >> 4) << (2 * (in_half / 32)));
  }
  return block;
}

}  // namespace

void quantize_row_q3_k(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_q3_k(x, w); });
}

void quantize_row_q6_k(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_q6_k(x, w); });
}

}  // namespace specdec::quantize
