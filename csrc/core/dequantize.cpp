#include "core/dequantize.h"

#include <cstdint>
#include <cstring>

#include "core/codebook_blocks.h"
#include "core/error.h"
#include "core/half.h"
#include "core/quant_blocks.h"

namespace specdec {
namespace {

// --- 32 values per block
// -------------------------------------------------------------------------- Each function decodes
// one block into dst [32].

// Bit i of the little-endian qh, moved to bit 4.
std::uint32_t fifth_bit(const std::uint8_t* qh, std::size_t i) {
  return static_cast<std::uint32_t>((qh[i / 8] >> (i % 8)) & 1) << 4;
}

// Low nibbles are values 0..15, high nibbles 16..31.
std::uint32_t nibble(const std::uint8_t* qs, std::size_t i) {
  constexpr std::size_t kHalf = kBlock / 2;
  return i < kHalf ? qs[i] & 15u : static_cast<std::uint32_t>(qs[i - kHalf] >> 4);
}

// value - offset, as float: exact.
float centred(std::uint32_t value, int offset) {
  return static_cast<float>(static_cast<int>(value) - offset);
}

void decode_block(const BlockQ4_0& block, float* dst) {
  const float d = half_to_float(block.d);
  for (std::size_t i = 0; i < kBlock; ++i) dst[i] = d * centred(nibble(block.qs, i), 8);
}

void decode_block(const BlockQ4_1& block, float* dst) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (std::size_t i = 0; i < kBlock; ++i) dst[i] = d * centred(nibble(block.qs, i), 0) + m;
}

void decode_block(const BlockQ5_0& block, float* dst) {
  const float d = half_to_float(block.d);
  for (std::size_t i = 0; i < kBlock; ++i) {
    dst[i] = d * centred(nibble(block.qs, i) | fifth_bit(block.qh, i), 16);
  }
}

void decode_block(const BlockQ5_1& block, float* dst) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (std::size_t i = 0; i < kBlock; ++i) {
    dst[i] = d * centred(nibble(block.qs, i) | fifth_bit(block.qh, i), 0) + m;
  }
}

void decode_block(const BlockQ8_0& block, float* dst) {
  const float d = half_to_float(block.d);
  for (std::size_t i = 0; i < kBlock; ++i) dst[i] = static_cast<float>(block.qs[i]) * d;
}

// --- 256 values per block
// ------------------------------------------------------------------------- Value i lies in
// sub-block i / 16 or i / 32. Its bits are spread in a pattern that repeats every 128 (or 64)
// values; the index arithmetic of each function spells it out. dst [256].

// Two bits per value: for each half of 128 values, group g of 32 is bits 2g..2g+1 of its 32 bytes.
std::uint32_t two_bits(const std::uint8_t* qs, std::size_t i) {
  const std::size_t half = i / 128, group = (i % 128) / 32, lane = i % 32;
  return static_cast<std::uint32_t>(qs[half * 32 + lane] >> (2 * group)) & 3u;
}

void decode_block(const BlockQ2_K& block, float* dst) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const std::uint8_t packed = block.scales[i / 16];
    const float scale = d * static_cast<float>(packed & 15);
    const float min = dmin * static_cast<float>(packed >> 4);
    dst[i] = scale * centred(two_bits(block.qs, i), 0) - min;
  }
}

// The 6-bit scale of sub-block j in [0, 16): low nibbles in bytes 0..7, high pairs in bytes 8..11.
std::uint32_t q3_k_scale(const std::uint8_t* scales, std::size_t j) {
  const std::uint32_t low = static_cast<std::uint32_t>(scales[j % 8] >> (4 * (j / 8))) & 15u;
  const std::uint32_t high = static_cast<std::uint32_t>(scales[8 + j % 4] >> (2 * (j / 4))) & 3u;
  return low | (high << 4);
}

void decode_block(const BlockQ3_K& block, float* dst) {
  const float d = half_to_float(block.d);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const float scale = d * centred(q3_k_scale(block.scales, i / 16), 32);
    // A set bit of hmask means "do not subtract 4".
    const int offset = ((block.hmask[i % 32] >> (i / 32)) & 1) != 0 ? 0 : 4;
    dst[i] = scale * centred(two_bits(block.qs, i), offset);
  }
}

struct ScaleMin {
  std::uint32_t scale, min;
};

// The 6-bit scale and min of sub-block j in [0, 8) of Q4_K and Q5_K: the first four lie in the low
// six bits of bytes 0..3 and 4..7; the last four in the nibbles of bytes 8..11 and in the top bits.
ScaleMin k_scale_min(const std::uint8_t* scales, std::size_t j) {
  const std::size_t k = j % 4;
  const std::uint32_t low = scales[k], mid = scales[k + 4], high = scales[k + 8];
  if (j < 4) return {low & 63u, mid & 63u};
  return {(high & 15u) | ((low >> 2) & 0x30u), (high >> 4) | ((mid >> 2) & 0x30u)};
}

// Four bits per value: each 64 values are 32 bytes, low nibbles first.
std::uint32_t k_nibble(const std::uint8_t* qs, std::size_t i) {
  const std::uint32_t byte = qs[(i / 64) * 32 + i % 32];
  return (i % 64) < 32 ? byte & 15u : byte >> 4;
}

void decode_block(const BlockQ4_K& block, float* dst) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const ScaleMin sub = k_scale_min(block.scales, i / 32);
    const float scale = d * centred(sub.scale, 0), min = dmin * centred(sub.min, 0);
    dst[i] = scale * centred(k_nibble(block.qs, i), 0) - min;
  }
}

void decode_block(const BlockQ5_K& block, float* dst) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const ScaleMin sub = k_scale_min(block.scales, i / 32);
    const float scale = d * centred(sub.scale, 0), min = dmin * centred(sub.min, 0);
    const std::uint32_t bit = static_cast<std::uint32_t>(block.qh[i % 32] >> (i / 32)) & 1u;
    dst[i] = scale * centred(k_nibble(block.qs, i) | (bit << 4), 0) - min;
  }
}

void decode_block(const BlockQ6_K& block, float* dst) {
  const float d = half_to_float(block.d);
  for (std::size_t i = 0; i < kSuperBlock; ++i) {
    const float scale = d * static_cast<float>(block.scales[i / 16]);
    // Each 128 values: 64 bytes of low nibbles (values 0..63 low, 64..127 high), 32 bytes of pairs.
    const std::size_t half = i / 128, in_half = i % 128;
    const std::uint32_t byte = block.ql[half * 64 + in_half % 64];
    const std::uint32_t low = in_half < 64 ? byte & 15u : byte >> 4;
    const std::uint32_t high = two_bits(block.qh, i);
    dst[i] = scale * centred(low | (high << 4), 32);
  }
}

// --- Types with a codebook
// ------------------------------------------------------------------------- dst [32 or 256].

float codebook_d_float(const BlockMXFP4& block) { return bf16_to_float(mxfp4_d(block)); }
template <HasCodebook Block>
float codebook_d_float(const Block& block) {
  return half_to_float(codebook_d(block));
}

template <HasCodebook Block>
void decode_block(const Block& block, float* dst) {
  const Codebook& book = codebook_of(block);
  const float d = codebook_d_float(block);
  for (std::size_t sub = 0; sub < (kOneScale<Block> ? 1 : kSuperBlock / kBlock); ++sub) {
    std::uint8_t codes[kBlock];
    codebook_codes(block, sub, codes);
    for (std::size_t i = 0; i < kBlock; ++i, ++dst) {
      const auto scale = static_cast<float>(codebook_scale(block, 2 * sub + i / 16));
      *dst = d * scale * book.unit * static_cast<float>(book.values[codes[i]]);
    }
  }
}

// src may be unaligned, so each block is copied out before it is read. dst [n]
template <typename Block>
void decode_row(const std::byte* src, float* dst, std::size_t n, std::size_t block_size) {
  for (std::size_t i = 0; i < n; i += block_size) {
    Block block;
    std::memcpy(&block, src, sizeof(Block));
    decode_block(block, dst + i);
    src += sizeof(Block);
  }
}

template <float (*kToFloat)(std::uint16_t)>
void decode_16bit(const std::byte* src, float* dst, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof(bits));
    dst[i] = kToFloat(bits);
  }
}

}  // namespace

void dequantize_row(DType dtype, const std::byte* src, float* dst, std::size_t n) {
  const DTypeInfo& info = dtype_info(dtype);
  const std::size_t block = info.block_size;
  SPECDEC_CHECK(n % block == 0, n, " values are not whole blocks of ", info.name);
  if (n == 0) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(dst, src, n * sizeof(float));
      return;
    case DType::kF16:
      return decode_16bit<half_to_float>(src, dst, n);
    case DType::kBF16:
      return decode_16bit<bf16_to_float>(src, dst, n);
    case DType::kQ4_0:
      return decode_row<BlockQ4_0>(src, dst, n, block);
    case DType::kQ4_1:
      return decode_row<BlockQ4_1>(src, dst, n, block);
    case DType::kQ5_0:
      return decode_row<BlockQ5_0>(src, dst, n, block);
    case DType::kQ5_1:
      return decode_row<BlockQ5_1>(src, dst, n, block);
    case DType::kQ8_0:
      return decode_row<BlockQ8_0>(src, dst, n, block);
    case DType::kQ2_K:
      return decode_row<BlockQ2_K>(src, dst, n, block);
    case DType::kQ3_K:
      return decode_row<BlockQ3_K>(src, dst, n, block);
    case DType::kQ4_K:
      return decode_row<BlockQ4_K>(src, dst, n, block);
    case DType::kQ5_K:
      return decode_row<BlockQ5_K>(src, dst, n, block);
    case DType::kQ6_K:
      return decode_row<BlockQ6_K>(src, dst, n, block);
    case DType::kIQ4_NL:
      return decode_row<BlockIQ4_NL>(src, dst, n, block);
    case DType::kMXFP4:
      return decode_row<BlockMXFP4>(src, dst, n, block);
    case DType::kIQ4_XS:
      return decode_row<BlockIQ4_XS>(src, dst, n, block);
    case DType::kIQ3_XXS:
      return decode_row<BlockIQ3_XXS>(src, dst, n, block);
    case DType::kIQ3_S:
      return decode_row<BlockIQ3_S>(src, dst, n, block);
    case DType::kIQ2_XXS:
      return decode_row<BlockIQ2_XXS>(src, dst, n, block);
    case DType::kIQ2_XS:
      return decode_row<BlockIQ2_XS>(src, dst, n, block);
    case DType::kIQ2_S:
      return decode_row<BlockIQ2_S>(src, dst, n, block);
    case DType::kIQ1_S:
      return decode_row<BlockIQ1_S>(src, dst, n, block);
    case DType::kIQ1_M:
      return decode_row<BlockIQ1_M>(src, dst, n, block);
  }
  throw InternalError(str("unknown DType ", static_cast<std::uint32_t>(dtype)));
}

}  // namespace specdec
