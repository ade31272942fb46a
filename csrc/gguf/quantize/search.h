// Least-squares searches shared by the quantisers. A block x [N] is to become step * q (symmetric)
// or step * q - offset (affine) with q a small integer. For given q the best step is a formula; so
// the searches try steps on a grid around "the largest value maps to the largest q", and judge each
// by the squared error that remains after the best step for its q is taken.
//
// Errors may count more in some columns than in others: everything takes weights w [N], positive,
// or EqualWeights, which costs nothing.
//
// Sums run in four lanes in a fixed order: fast without any machine flag, and the same everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/half.h"
#include "core/quant_blocks.h"

namespace specdec::quantize {

// Beyond what any block type can express: clamping here keeps all sums of squares finite.
inline constexpr float kLargest = 1e9f;
// Below half of the smallest step of any type: such a block is zero.
inline constexpr float kSmallest = 1e-9f;

inline constexpr std::size_t kLanes = 4;

// Nearest integer, ties to even, for |v| < 2^22: adding 1.5 * 2^23 leaves no fraction bits.
inline float nearest(float v) { return (v + 12582912.0f) - 12582912.0f; }

inline float clamped(float v, float lo, float hi) {
  const float low = v < lo ? lo : v;
  return low > hi ? hi : low;
}

// The nearest finite half float.
inline HalfBits finite_half(float v) { return float_to_half(clamped(v, -65504.0f, 65504.0f)); }

// The nearest finite half float that is not zero, unless v is: the integers that it multiplies can
// make up for a step that is too large, not for one of zero.
inline HalfBits step_half(float v) {
  const HalfBits half = finite_half(v);
  const bool lost = v != 0.0f && (half & 0x7fffu) == 0;
  return lost ? static_cast<HalfBits>(half | 1u) : half;
}

inline float inverse_of(float step) { return step != 0.0f ? 1.0f / step : 0.0f; }

inline float lane_sum(const float (&lanes)[kLanes]) {
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

// The q that are allowed.
struct Range {
  float lo, hi;
};

// Steps to try: the largest |x| maps to `bound` times a factor from `first` to `last`.
struct Grid {
  float first, last;
  int count;
  float at(int i) const {
    return first + (last - first) * static_cast<float>(i) / static_cast<float>(count - 1);
  }
};

// Every value counts the same.
struct EqualWeights {
  constexpr float operator[](std::size_t) const { return 1.0f; }
  constexpr EqualWeights operator+(std::size_t) const { return {}; }
};

template <std::size_t N, typename W>
float weight_sum(W w) {
  float sum[kLanes] = {};
  for (std::size_t i = 0; i < N; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) sum[l] += w[i + l];
  }
  return lane_sum(sum);
}

// Weighted sums of x * q, q * q and q.
struct Moments {
  float xq = 0, qq = 0, q = 0;
};

// q [N] = nearest((x + offset) * inverse), clamped. A loop of its own, so that it is vectorised.
template <std::size_t N>
void round_block(const float* x, float inverse, float offset, Range range, float* q) {
  for (std::size_t i = 0; i < N; ++i) {
    q[i] = nearest(clamped((x[i] + offset) * inverse, range.lo, range.hi));
  }
}

// Sums over the block with the q that belong to this step.
template <std::size_t N, typename W>
Moments moments(const float* x, W w, float inverse, float offset, Range range) {
  float q[N];
  round_block<N>(x, inverse, offset, range, q);
  float xq[kLanes] = {}, qq[kLanes] = {}, sum[kLanes] = {};
  for (std::size_t i = 0; i < N; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float wq = w[i + l] * q[i + l];
      xq[l] += x[i + l] * wq;
      qq[l] += q[i + l] * wq;
      sum[l] += wq;
    }
  }
  return {lane_sum(xq), lane_sum(qq), lane_sum(sum)};
}

// Squared error of x against step * q - offset with the nearest allowed q.
template <std::size_t N, typename W>
float squared_error(const float* x, W w, float step, float offset, Range range) {
  float q[N];
  round_block<N>(x, inverse_of(step), offset, range, q);
  float sum[kLanes] = {};
  for (std::size_t i = 0; i < N; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float error = x[i + l] - (step * q[i + l] - offset);
      sum[l] += w[i + l] * error * error;
    }
  }
  return lane_sum(sum);
}

// q [N] as signed bytes.
template <std::size_t N>
void assign(const float* x, float step, float offset, Range range, std::int8_t* q) {
  float rounded[N];
  round_block<N>(x, inverse_of(step), offset, range, rounded);
  for (std::size_t i = 0; i < N; ++i) q[i] = static_cast<std::int8_t>(rounded[i]);
}

// The value of the block that is largest in magnitude, with its sign.
template <std::size_t N>
float largest(const float* x) {
  float top = 0;
  for (std::size_t i = 0; i < N; ++i) {
    if (std::fabs(x[i]) > std::fabs(top)) top = x[i];
  }
  return top;
}

// By how much a step must be better than those tried before: rounding must not decide.
inline constexpr float kBetter = 1.0f + 2e-6f;

// The step (of either sign) whose symmetric quantisation leaves the smallest error; 0 for a block
// of zeros. Both ends of the range are tried as the place of the largest value.
template <std::size_t N, typename W>
float fit_step(const float* x, W w, Range range, Grid grid) {
  const float top = largest<N>(x);
  if (std::fabs(top) < kSmallest) return 0;
  float best = 0, step = top / range.lo;
  const auto consider = [&](float inverse) {
    const Moments m = moments<N>(x, w, inverse, 0, range);
    if (m.qq > 0 && m.xq * m.xq > best * kBetter * m.qq) {
      best = m.xq * m.xq / m.qq;  // by how much the squared error is below that of all zeros
      step = m.xq / m.qq;
    }
  };
  for (const float bound : {range.lo, range.hi}) {
    for (int i = 0; i < grid.count; ++i) consider(bound * grid.at(i) / top);
  }
  for (int i = 0; i < 2; ++i) consider(inverse_of(step));
  return step;
}

template <std::size_t N, typename W>
float square_sum(const float* x, W w) {
  float sum[kLanes] = {};
  for (std::size_t i = 0; i < N; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) sum[l] += w[i + l] * x[i + l] * x[i + l];
  }
  return lane_sum(sum);
}

// Weights under which large values count somewhat more: out [N] = w * sqrt(1 + x * x / mean
// square). For 3 bits, and for 4 with one scale, this costs 2 to 4 % of squared error and lowers
// the perplexity of the model, which depends on its large weights most (llama.cpp weighs so too).
template <std::size_t N, typename W>
void emphasise_large(const float* x, W w, float* out) {
  const float mean = square_sum<N>(x, EqualWeights{}) / static_cast<float>(N);
  const float inverse = mean > kSmallest * kSmallest ? 1.0f / mean : 0.0f;
  for (std::size_t i = 0; i < N; ++i) out[i] = w[i] * std::sqrt(1.0f + x[i] * x[i] * inverse);
}

// The step for which the block keeps its length along x: sum(x * y) = sum(x * x) for the values y
// that it stands for. Least squares makes blocks too short by the share of their error (their sum
// is sum(y * y)), and with them every product of a row; this costs only the square of that share.
// xx, xq: weighted sums of x * x and x * q.
inline float unshrunk(float step, float xx, float xq) { return xq * step > 0 ? xx / xq : step; }

struct Affine {
  float step, offset;  // value = step * q - offset
};

// The affine quantisation with q in [0, levels] that leaves the smallest error. Grid: the fractions
// of the range that are cut off below and above.
template <std::size_t N, typename W>
Affine fit_affine(const float* x, W w, float levels, Grid cut) {
  const float n = weight_sum<N>(w);
  float mean = 0, low = x[0], high = x[0];
  for (std::size_t i = 0; i < N; ++i) {
    mean += w[i] * x[i] / n;
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (high - low < kSmallest) return {0, -mean};
  // Around the mean, the error explained by the best step and offset for given q is one product.
  float centred[N];
  for (std::size_t i = 0; i < N; ++i) centred[i] = x[i] - mean;
  const float start = low - mean, width = high - low;
  float best = -1;
  Affine result = {width / levels, -low};
  const auto consider = [&](float step, float offset) {
    const Moments m = moments<N>(centred, w, inverse_of(step), offset, {0, levels});
    const float spread = n * m.qq - m.q * m.q;
    if (spread > 0 && n * m.xq * m.xq > best * spread) {
      best = n * m.xq * m.xq / spread;
      result.step = n * m.xq / spread;
      result.offset = result.step * m.q / n - mean;
    }
  };
  for (int a = 0; a < cut.count; ++a) {
    for (int b = 0; b < cut.count; ++b) {
      const float below = cut.at(a), above = cut.at(b);
      consider(width * (1 - below - above) / levels, -(start + width * below));
    }
  }
  for (int i = 0; i < 2; ++i) consider(result.step, result.offset + mean);
  return result;
}

}  // namespace specdec::quantize
