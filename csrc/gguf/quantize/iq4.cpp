// The 4-bit types whose numbers are places in a table: IQ4_NL and IQ4_XS (a table denser near
// zero), MXFP4 (the 4-bit floats of the OCP microscaling format).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gguf/quantize/block_row.h"
#include "gguf/quantize/families.h"
#include "gguf/quantize/search.h"

namespace specdec::quantize {
namespace {

// Layouts as in the format (ggml-common.h, gguf-py quants.py).

// value[i] = d * table[q[i]]; low nibbles are values 0..15, high nibbles 16..31.
struct Iq4NlBlock {
  HalfBits d;
  std::uint8_t qs[kBlock / 2];
};

// 8 sub-blocks of 32: value = d * (scale[j] - 32) * table[q]; scale: 4 bits in scales_l, 2 in
// scales_h.
struct Iq4XsBlock {
  HalfBits d;
  std::uint16_t scales_h;
  std::uint8_t scales_l[kSuperBlock / 64];
  std::uint8_t qs[kSuperBlock / 2];
};

// value[i] = 2^(e - 128) * table[q[i]]: the table holds the floats doubled.
struct Mxfp4Block {
  std::uint8_t e;
  std::uint8_t qs[kBlock / 2];
};

static_assert(sizeof(Iq4NlBlock) == 18 && sizeof(Iq4XsBlock) == 136 && sizeof(Mxfp4Block) == 17);

using Table = std::array<float, 16>;  // ascending

constexpr Table kIq4Table = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};
constexpr Table kMxfp4Table = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

// Where the nearest entry of a table changes: entry i + 1 is nearer above threshold i. Ascending.
constexpr std::array<float, 15> thresholds(const Table& table) {
  std::array<float, 15> out = {};
  for (std::size_t i = 0; i < 15; ++i) out[i] = (table[i] + table[i + 1]) / 2;
  return out;
}

constexpr std::array<float, 15> kIq4Thresholds = thresholds(kIq4Table);
constexpr std::array<float, 15> kMxfp4Thresholds = thresholds(kMxfp4Table);

// Index of the nearest entry, by halving.
std::size_t place(const std::array<float, 15>& thresholds, float v) {
  std::size_t i = v > thresholds[7] ? 8 : 0;
  i += v > thresholds[i + 3] ? 4 : 0;
  i += v > thresholds[i + 1] ? 2 : 0;
  i += v > thresholds[i] ? 1 : 0;
  return i;
}

// q [32]: places of the nearest entries.
void assign_places(const float* x, float step, const std::array<float, 15>& thresholds,
                   std::uint8_t* q) {
  const float inverse = inverse_of(step);
  for (std::size_t i = 0; i < kBlock; ++i) {
    q[i] = static_cast<std::uint8_t>(place(thresholds, x[i] * inverse));
  }
}

struct TableFit {
  float step = 0, explained = -1;
};

// The best step of the entries that are nearest at 1 / inverse.
template <typename W>
TableFit refit(const float* x, W w, float inverse) {
  float xq = 0, qq = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float q = kIq4Table[place(kIq4Thresholds, x[i] * inverse)];
    xq += w[i] * x[i] * q;
    qq += w[i] * q * q;
  }
  return {xq / qq, xq * xq / qq};  // no entry is 0
}

template <typename W>
float fit_iq4_step(const float* x, W w) {
  const float top = largest<kBlock>(x);
  if (std::fabs(top) < kSmallest) return 0;
  constexpr Grid kGrid = {0.7f, 1.15f, 14};
  TableFit best;
  const auto consider = [&](float inverse) {
    const TableFit fit = refit(x, w, inverse);
    if (fit.explained > best.explained) best = fit;
  };
  for (const float bound : {kIq4Table.front(), kIq4Table.back()}) {
    for (int i = 0; i < kGrid.count; ++i) consider(bound * kGrid.at(i) / top);
  }
  for (int i = 0; i < 2; ++i) consider(inverse_of(best.step));
  return best.step;
}

template <typename W>
float iq4_error(const float* x, W w, float step) {
  const float inverse = inverse_of(step);
  float sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float error = x[i] - step * kIq4Table[place(kIq4Thresholds, x[i] * inverse)];
    sum += w[i] * error * error;
  }
  return sum;
}

void pack_nibbles(const std::uint8_t* q, std::uint8_t* qs) {
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    qs[i] = static_cast<std::uint8_t>(q[i] | q[i + kBlock / 2] << 4);
  }
}

constexpr std::size_t kSubs = kSuperBlock / kBlock;
constexpr int kScaleBias = 32;

struct Iq4Super {
  HalfBits d = 0;
  int scale[kSubs] = {};  // -32 to 31
  float error = std::numeric_limits<float>::max();
};

template <typename W>
void choose_scale(const float* x, W w, float wish, Iq4Super& super, std::size_t j) {
  const float d = half_to_float(super.d);
  const int centre = static_cast<int>(nearest(clamped(wish * inverse_of(d), -32, 31)));
  float best = std::numeric_limits<float>::max();
  for (int s = std::max(centre - 1, -32); s <= std::min(centre + 1, 31); ++s) {
    const float error = iq4_error(x, w, d * static_cast<float>(s));
    if (error < best) {
      best = error;
      super.scale[j] = s;
    }
  }
  super.error += best;
}

template <typename W>
void refit_unit(const float* x, W w, Iq4Super& super) {
  const float d = half_to_float(super.d);
  double xq = 0, qq = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const float scale = static_cast<float>(super.scale[j]);
    const float inverse = inverse_of(d * scale);
    for (std::size_t i = 0; i < kBlock; ++i) {
      const float v = x[j * kBlock + i];
      const float q = scale * kIq4Table[place(kIq4Thresholds, v * inverse)];
      const double wq = static_cast<double>(w[j * kBlock + i]) * q;
      xq += static_cast<double>(v) * wq;
      qq += static_cast<double>(q) * wq;
    }
  }
  if (qq > 0) super.d = step_half(static_cast<float>(xq / qq));
}

// x [256]
template <typename W>
Iq4Super fit_iq4_super(const float* x, W w) {
  constexpr int kRounds = 3;
  float wish[kSubs];
  float top = 0;
  for (std::size_t j = 0; j < kSubs; ++j) {
    wish[j] = fit_iq4_step(x + j * kBlock, w + j * kBlock);
    if (std::fabs(wish[j]) > std::fabs(top)) top = wish[j];
  }
  Iq4Super super, best;
  super.d = step_half(-top / kScaleBias);
  for (int round = 0; round < kRounds; ++round) {
    super.error = 0;
    for (std::size_t j = 0; j < kSubs; ++j)
      choose_scale(x + j * kBlock, w + j * kBlock, wish[j], super, j);
    if (super.error < best.error) best = super;
    if (round + 1 < kRounds) refit_unit(x, w, super);
  }
  return best;
}

template <typename W>
Iq4NlBlock encode_iq4_nl(const float* x, W w) {
  Iq4NlBlock block = {};
  float emphasised[kBlock];
  emphasise_large<kBlock>(x, w, emphasised);
  const float fitted = fit_iq4_step(x, emphasised);
  float xq = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    xq += w[i] * x[i] * kIq4Table[place(kIq4Thresholds, x[i] * inverse_of(fitted))];
  }
  block.d = step_half(unshrunk(fitted, square_sum<kBlock>(x, w), xq));
  std::uint8_t q[kBlock];
  assign_places(x, half_to_float(block.d), kIq4Thresholds, q);
  pack_nibbles(q, block.qs);
  return block;
}

template <typename W>
Iq4XsBlock encode_iq4_xs(const float* x, W w) {
  const Iq4Super super = fit_iq4_super(x, w);
  const float d = half_to_float(super.d);
  Iq4XsBlock block = {};
  block.d = super.d;
  for (std::size_t j = 0; j < kSubs; ++j) {
    const int scale = super.scale[j] + kScaleBias;
    block.scales_l[j / 2] =
        static_cast<std::uint8_t>(block.scales_l[j / 2] | (scale & 15) << (4 * (j % 2)));
    block.scales_h = static_cast<std::uint16_t>(block.scales_h | (scale >> 4) << (2 * j));
    std::uint8_t q[kBlock];
    assign_places(x + j * kBlock, d * static_cast<float>(super.scale[j]), kIq4Thresholds, q);
    pack_nibbles(q, block.qs + j * kBlock / 2);
  }
  return block;
}

// 2^(e - 128), the unit of a block's doubled table.
float mxfp4_unit(int e) { return std::ldexp(1.0f, e - 128); }

template <typename W>
float mxfp4_error(const float* x, W w, float unit) {
  const float inverse = 1.0f / unit;
  float sum = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const float error = x[i] - unit * kMxfp4Table[place(kMxfp4Thresholds, x[i] * inverse)];
    sum += w[i] * error * error;
  }
  return sum;
}

// A place in the ascending table as the format's code: sign bit and magnitude.
std::uint8_t mxfp4_code(std::uint8_t place) {
  return static_cast<std::uint8_t>(place >= 8 ? place - 8 : 15 - place);
}

template <typename W>
Mxfp4Block encode_mxfp4(const float* x, W w) {
  Mxfp4Block block = {};
  const float top = std::fabs(largest<kBlock>(x));
  if (top < kSmallest) return block;
  // The unit for which the largest value is about the table's 12, and its neighbours.
  const int centre = std::ilogb(top / 12) + 128;
  float best = std::numeric_limits<float>::max();
  for (int e = centre - 1; e <= centre + 1; ++e) {
    const float error = mxfp4_error(x, w, mxfp4_unit(e));
    if (error < best) {
      best = error;
      block.e = static_cast<std::uint8_t>(e);
    }
  }
  std::uint8_t q[kBlock];
  assign_places(x, mxfp4_unit(block.e), kMxfp4Thresholds, q);
  for (std::uint8_t& one : q) one = mxfp4_code(one);
  pack_nibbles(q, block.qs);
  return block;
}

}  // namespace

void quantize_row_iq4_nl(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights,
                     [](const float* x, auto w) { return encode_iq4_nl(x, w); });
}

void quantize_row_iq4_xs(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kSuperBlock>(src, dst, n, weights,
                          [](const float* x, auto w) { return encode_iq4_xs(x, w); });
}

void quantize_row_mxfp4(const float* src, std::byte* dst, std::size_t n, const float* weights) {
  encode_row<kBlock>(src, dst, n, weights,
                     [](const float* x, auto w) { return encode_mxfp4(x, w); });
}

}  // namespace specdec::quantize
