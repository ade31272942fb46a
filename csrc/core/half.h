// Conversions between float32 and the two 16-bit formats, in integer arithmetic: the same bits as
// F16C and as the NumPy casts (round to nearest, ties to even), on every machine.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace specdec {

SPECDEC_HD inline float bits_to_float(std::uint32_t bits) {
  union {
    std::uint32_t u;
    float f;
  } pun = {bits};
  return pun.f;
}

SPECDEC_HD inline std::uint32_t float_to_bits(float value) {
  union {
    float f;
    std::uint32_t u;
  } pun = {value};
  return pun.u;
}

SPECDEC_HD inline float half_to_float(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest >= 0x0400u) return bits_to_float(sign | ((rest << 13) + 0x38000000u));
  // Subnormal: value = rest * 2^-24, exact in float.
  const float magnitude = static_cast<float>(rest) * 5.9604644775390625e-08f;
  return bits_to_float(sign | float_to_bits(magnitude));
}

SPECDEC_HD inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = float_to_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t mag = bits & 0x7fffffffu;
  if (mag > 0x7f800000u) {  // NaN stays a NaN (quiet)
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
  }
  if (mag >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (mag < 0x38800000u) {  // subnormal half: adding 0.5 rounds at bit 2^-24
    const float rounded = bits_to_float(mag) + 0.5f;
    return static_cast<std::uint16_t>(sign | (float_to_bits(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = (mag >> 13) & 1u;
  return static_cast<std::uint16_t>(sign | ((mag - 0x38000000u + 0xfffu + odd) >> 13));
}

SPECDEC_HD inline float bf16_to_float(std::uint16_t b) {
  return bits_to_float(static_cast<std::uint32_t>(b) << 16);
}

}  // namespace specdec
