// The library's own exp, log, sin and cos. libm's differ between platforms and versions in the last
// bit, and the exactness promise needs the same bits everywhere: every ISA level, every operating
// system, the device. Only + - * / and integer operations, never a contracted multiply-add, so that
// any IEEE machine gives the same result. Accuracy is a few units in the last place.
#pragma once

#include <cstdint>

#include "core/half.h"
#include "core/host_device.h"

namespace specdec {

// Constants of exp_f32, shared with the vector kernels, which must do the very same operations.
// Polynomial and split of ln 2: Cephes expf (Moshier), used as published figures.
namespace exp_f32_constants {
inline constexpr float kMin = -87.0f;  // below: the result is 0 (no subnormals)
inline constexpr float kMax = 88.0f;   // above: clamped
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
inline constexpr float kLn2Hi = 0.693359375f;
inline constexpr float kLn2Lo = -2.12194440e-4f;
inline constexpr float kP0 = 1.9875691500e-4f, kP1 = 1.3981999507e-3f, kP2 = 8.3334519073e-3f;
inline constexpr float kP3 = 4.1665795894e-2f, kP4 = 1.6666665459e-1f, kP5 = 5.0000001201e-1f;
}  // namespace exp_f32_constants

// e^x for x <= kMax; 0 for x < kMin and for NaN.
SPECDEC_HD inline float exp_f32(float x) {
  using namespace exp_f32_constants;
  if (!(x >= kMin)) return 0.0f;
  if (x > kMax) x = kMax;
  const float shifted = x * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2Hi) - n * kLn2Lo;
  float p = kP0;
  p = p * r + kP1;
  p = p * r + kP2;
  p = p * r + kP3;
  p = p * r + kP4;
  p = p * r + kP5;
  const float y = (p * (r * r) + r) + 1.0f;
  // The low bits of `shifted` hold n; adding n to the exponent multiplies by 2^n.
  const std::uint32_t exponent = float_to_bits(shifted) << 23;
  return bits_to_float(float_to_bits(y) + exponent);
}

// Polynomial of tanh for small arguments, shared with the vector kernels: Cephes tanhf (Moshier).
namespace tanh_f32_constants {
inline constexpr float kSmall = 0.625f;  // up to here the polynomial, from here on exp
inline constexpr float kP0 = -5.70498872745e-3f, kP1 = 2.06390887954e-2f;
inline constexpr float kP2 = -5.37397155531e-2f, kP3 = 1.33314422036e-1f;
inline constexpr float kP4 = -3.33332819422e-1f;
}  // namespace tanh_f32_constants

SPECDEC_HD inline float tanh_f32(float x) {
  using namespace tanh_f32_constants;
  const float size = x >= 0.0f ? x : 0.0f - x;
  if (size >= kSmall) {
    const float y = 1.0f - 2.0f / (exp_f32(size + size) + 1.0f);
    return x >= 0.0f ? y : 0.0f - y;
  }
  const float x2 = x * x;
  float p = kP0;
  p = p * x2 + kP1;
  p = p * x2 + kP2;
  p = p * x2 + kP3;
  p = p * x2 + kP4;
  return (p * x2) * x + x;
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))): GELU by its tanh form (arXiv 1606.08415).
namespace gelu_f32_constants {
inline constexpr float kCubic = 0.044715f;
inline constexpr float kSqrt2OverPi = 0.79788456080286536f;
}  // namespace gelu_f32_constants

SPECDEC_HD inline float gelu_f32(float x) {
  using namespace gelu_f32_constants;
  const float inner = kSqrt2OverPi * (x + kCubic * (x * x) * x);
  return (0.5f * x) * (1.0f + tanh_f32(inner));
}

// The clamped gate of gpt-oss: g = min(gate, 7), u = clamp(up, -7, 7), g / (1 + exp(-1.702 g)) *
// (u + 1).
namespace clamped_swiglu_constants {
inline constexpr float kLimit = 7.0f;
inline constexpr float kSlope = 1.702f;
}  // namespace clamped_swiglu_constants

SPECDEC_HD inline float clamped_swiglu_f32(float gate, float up) {
  using namespace clamped_swiglu_constants;
  const float g = kLimit < gate ? kLimit : gate;
  const float below = kLimit < up ? kLimit : up;
  const float u = 0.0f - kLimit > below ? 0.0f - kLimit : below;
  return g / (1.0f + exp_f32(0.0f - kSlope * g)) * (u + 1.0f);
}

namespace detail {

SPECDEC_HD inline std::uint64_t double_to_bits(double value) {
  union {
    double f;
    std::uint64_t u;
  } pun = {value};
  return pun.u;
}

SPECDEC_HD inline double bits_to_double(std::uint64_t bits) {
  union {
    std::uint64_t u;
    double f;
  } pun = {bits};
  return pun.f;
}

// 2 * atanh(s) = log((1 + s) / (1 - s)) for |s| <= 0.1716, by its series.
SPECDEC_HD inline double two_atanh(double s) {
  const double s2 = s * s;
  double sum = 0.0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2.0 * s * sum;
}

}  // namespace detail

// Natural logarithm of a positive, normal x; -infinity for 0.
SPECDEC_HD inline double log_f64(double x) {
  if (!(x > 0.0)) return detail::bits_to_double(0xfff0000000000000ull);
  const std::uint64_t bits = detail::double_to_bits(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double mantissa =
      detail::bits_to_double((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);  // [1, 2)
  if (mantissa > 1.4142135623730951) {
    mantissa *= 0.5;
    exponent += 1;
  }
  const double log_mantissa = detail::two_atanh((mantissa - 1.0) / (mantissa + 1.0));
  return exponent * 0.69314718055994531 + log_mantissa;
}

// -log(1 - v) for v in [0, 1]: exact to the last places also for tiny v; +infinity for 1.
SPECDEC_HD inline double neg_log1m_f64(double v) {
  if (v > 0.25) return -log_f64(1.0 - v);
  return detail::two_atanh(v / (2.0 - v));
}

// e^x in double, for |x| < 700.
SPECDEC_HD inline double exp_f64(double x) {
  if (x < -700.0) return 0.0;
  if (x > 700.0) x = 700.0;
  const double shifted = x * 1.4426950408889634 + 6755399441055744.0;  // 1.5 * 2^52
  const double n = shifted - 6755399441055744.0;
  // ln 2 = hi + lo, hi with 21 trailing zero bits, so that n * hi is exact (fdlibm e_exp).
  const double r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  double sum = 1.0;
  for (int k = 14; k >= 1; --k) sum = sum * r / k + 1.0;
  const std::uint64_t exponent = detail::double_to_bits(shifted) << 52;
  return detail::bits_to_double(detail::double_to_bits(sum) + exponent);
}

struct SinCos {
  double sin, cos;
};

// Sine and cosine of |x| < 2^20: Cody-Waite reduction by pi/2 in three parts (fdlibm e_rem_pio2),
// then the Taylor series on [-pi/4, pi/4].
SPECDEC_HD inline SinCos sin_cos_f64(double x) {
  const double shifted = x * 0.63661977236758134 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = ((x - n * 1.57079632673412561417e+00) - n * 6.07710050630396597660e-11) -
                   n * 2.02226624879595063154e-21;
  const double r2 = r * r;
  double s = 1.0, c = 1.0;
  for (int k = 9; k >= 1; --k) {
    s = 1.0 - s * r2 / ((2 * k) * (2 * k + 1));
    c = 1.0 - c * r2 / ((2 * k - 1) * (2 * k));
  }
  s *= r;
  switch (detail::double_to_bits(shifted) & 3u) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace specdec
