// What levels_digest.cpp makes its inputs of, and sums its results up in. Only integer arithmetic
// and exact conversions make the inputs, so they are the same everywhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/dequantize.h"
#include "core/half.h"
#include "core/tensor.h"

namespace specdec::digest {

using Floats = std::vector<float>;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// SplitMix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // About normal with variance 1: the sum of three uniform numbers in (-1, 1), on a grid of 2^-20.
  float normal() {
    std::int32_t sum = 0;
    for (int i = 0; i < 3; ++i) sum += static_cast<std::int32_t>(bits() >> 43) - (1 << 20);
    return static_cast<float>(sum) * 0x1p-20f;
  }
  Floats normals(std::size_t count, float scale = 1.0f) {
    Floats out(count);
    for (float& x : out) x = normal() * scale;
    return out;
  }

 private:
  std::uint64_t state_;
};

// FNV-1a. All NaNs count as one: their bits differ between architectures.
class Digest {
 public:
  void add_bytes(const void* data, std::size_t bytes) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) hash_ = (hash_ ^ p[i]) * 0x100000001B3u;
  }
  void add(std::uint64_t value) { add_bytes(&value, sizeof(value)); }
  void add(const Floats& values) {
    for (const float x : values) add(std::isnan(x) ? 0x7fc00000u : float_to_bits(x));
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xCBF29CE484222325u;
};

// A weight matrix [rows, cols] as it lies in a file.
struct RawWeight {
  DType dtype;
  std::size_t rows, cols;
  std::vector<std::byte> data;
  std::size_t matrices = 1;  // that the rows are divided into

  TensorView view() const {
    std::vector<std::size_t> shape = {rows, cols};
    if (matrices > 1) shape = {matrices, rows / matrices, cols};
    return {"weight", dtype, shape, data.data(), data.size()};
  }
};

// Whether a block stands for numbers of which a row's sum is finite.
inline bool is_ordinary(DType dtype, const std::byte* block) {
  Floats values(dtype_info(dtype).block_size);
  dequantize_row(dtype, block, values.data(), values.size());
  return std::all_of(values.begin(), values.end(), [](float x) { return std::fabs(x) < 1000.0f; });
}

// Random bytes, or ordinary numbers in the even rows of float types. `fill` >= 0: that byte
// wherever the block stays ordinary, for the largest and smallest weights and scales.
inline RawWeight make_weight(DType dtype, std::size_t rows, std::size_t cols, Random& random,
                             int fill = -1) {
  const DTypeInfo& info = dtype_info(dtype);
  RawWeight out{dtype, rows, cols, std::vector<std::byte>(rows * row_bytes(dtype, cols))};
  const std::size_t row_blocks = cols / info.block_size;
  for (std::size_t i = 0; i < rows * row_blocks; ++i) {
    std::byte* block = out.data.data() + i * info.block_bytes;
    if (info.block_size == 1 && i / row_blocks % 2 == 0) {
      const float x = random.normal();
      const std::uint32_t bits = float_to_bits(x);
      const std::uint16_t half =
          dtype == DType::kF16 ? float_to_half(x) : static_cast<std::uint16_t>(bits >> 16);
      if (dtype == DType::kF32) std::memcpy(block, &bits, sizeof(bits));
      if (dtype != DType::kF32) std::memcpy(block, &half, sizeof(half));
      continue;
    }
    do {
      for (std::size_t b = 0; b < info.block_bytes; ++b) block[b] = std::byte(random.bits() >> 56);
    } while (!is_ordinary(dtype, block));
    for (std::size_t b = 0; fill >= 0 && b < info.block_bytes; ++b) {
      const std::byte old = std::exchange(block[b], std::byte(fill));
      if (!is_ordinary(dtype, block)) block[b] = old;
    }
  }
  return out;
}

}  // namespace specdec::digest
