// The block structs of the GGUF quantised types, byte for byte as they lie in the file (layouts:
// ggml-common.h and gguf-py quants.py, used as format facts). `d` and friends are IEEE half bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec {

inline constexpr std::size_t kBlock = 32;        // values per block of the simple types
inline constexpr std::size_t kSuperBlock = 256;  // values per block of the K types

using HalfBits = std::uint16_t;

// value[i] = d * (q[i] - 8); low nibbles are values 0..15, high nibbles 16..31 (also for Q4_1,
// Q5_*).
struct BlockQ4_0 {
  HalfBits d;
  std::uint8_t qs[kBlock / 2];
};

// value[i] = d * q[i] + m
struct BlockQ4_1 {
  HalfBits d, m;
  std::uint8_t qs[kBlock / 2];
};

// value[i] = d * (q[i] - 16); bit i of qh (little endian) is bit 4 of q[i]
struct BlockQ5_0 {
  HalfBits d;
  std::uint8_t qh[4];
  std::uint8_t qs[kBlock / 2];
};

// value[i] = d * q[i] + m
struct BlockQ5_1 {
  HalfBits d, m;
  std::uint8_t qh[4];
  std::uint8_t qs[kBlock / 2];
};

// value[i] = d * q[i]
struct BlockQ8_0 {
  HalfBits d;
  std::int8_t qs[kBlock];
};

// 16 sub-blocks of 16; value = d * (scales[j] & 15) * q - dmin * (scales[j] >> 4), q of 2 bits:
// for each half of 128 values, sub-blocks 2s and 2s+1 are bits 2s..2s+1 of its 32 bytes.
struct BlockQ2_K {
  std::uint8_t scales[kSuperBlock / 16];
  std::uint8_t qs[kSuperBlock / 4];
  HalfBits d, dmin;
};

// 16 sub-blocks of 16; value = d * (scale[j] - 32) * (q - 4), q of 2 bits plus the bit of hmask;
// the sixteen 6-bit scales are packed into 12 bytes.
struct BlockQ3_K {
  std::uint8_t hmask[kSuperBlock / 8];
  std::uint8_t qs[kSuperBlock / 4];
  std::uint8_t scales[12];
  HalfBits d;
};

// 8 sub-blocks of 32; value = d * scale[j] * q - dmin * min[j]; scales and mins of 6 bits in 12
// bytes.
struct BlockQ4_K {
  HalfBits d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qs[kSuperBlock / 2];
};

// As Q4_K, with a fifth bit per value in qh.
struct BlockQ5_K {
  HalfBits d, dmin;
  std::uint8_t scales[12];
  std::uint8_t qh[kSuperBlock / 8];
  std::uint8_t qs[kSuperBlock / 2];
};

// 16 sub-blocks of 16; value = d * scales[j] * (q - 32), q of 4 + 2 bits.
struct BlockQ6_K {
  std::uint8_t ql[kSuperBlock / 2];
  std::uint8_t qh[kSuperBlock / 4];
  std::int8_t scales[kSuperBlock / 16];
  HalfBits d;
};

// --- Types with a codebook: value = d * scale * unit * codebook[code], see codebook_blocks.h ---

// A code of 4 bits per value, ordered as in Q4_0.
struct BlockIQ4_NL {
  HalfBits d;
  std::uint8_t qs[kBlock / 2];
};

// The same codes with d = 2^(e - 128).
struct BlockMXFP4 {
  std::uint8_t e;
  std::uint8_t qs[kBlock / 2];
};

// 8 sub-blocks of 32, each with codes as in Q4_0; scale - 32 of 4 + 2 bits.
struct BlockIQ4_XS {
  HalfBits d;
  std::uint16_t scales_h;
  std::uint8_t scales_l[kSuperBlock / 64];
  std::uint8_t qs[kSuperBlock / 2];
};

// Per 32 values 8 bytes: four grid indices of 8 values, then four 7-bit sign patterns and a scale
// of 4 bits, little endian.
struct BlockIQ2_XXS {
  HalfBits d;
  std::uint8_t qs[kSuperBlock / 4];
};

// Per 8 values a grid index of 9 bits and a sign pattern of 7; per 16 values a scale of 4 bits.
struct BlockIQ2_XS {
  HalfBits d;
  std::uint16_t qs[kSuperBlock / 8];
  std::uint8_t scales[kSuperBlock / 32];
};

// Per 8 values a grid index of 8 + 2 bits and 8 signs; per 16 values a scale of 4 bits.
struct BlockIQ2_S {
  HalfBits d;
  std::uint8_t qs[kSuperBlock / 8];
  std::uint8_t signs[kSuperBlock / 8];
  std::uint8_t qh[kSuperBlock / 32];
  std::uint8_t scales[kSuperBlock / 32];
};

// Per 4 values a grid index; per 32 values four 7-bit sign patterns and a scale of 4 bits.
struct BlockIQ3_XXS {
  HalfBits d;
  std::uint8_t qs[kSuperBlock / 4];
  std::uint8_t signs_scales[kSuperBlock / 8];
};

// Per 4 values a grid index of 8 + 1 bits, 8 signs per 8 values; per 32 values a scale of 4 bits.
struct BlockIQ3_S {
  HalfBits d;
  std::uint8_t qs[kSuperBlock / 4];
  std::uint8_t qh[kSuperBlock / 32];
  std::uint8_t signs[kSuperBlock / 8];
  std::uint8_t scales[kSuperBlock / 64];
};

// Per 8 values a grid index of 8 + 3 bits; per 32 values a scale of 3 bits and the sign of a shift
// by 1/8, both in the top bits of qh.
struct BlockIQ1_S {
  HalfBits d;
  std::uint8_t qs[kSuperBlock / 8];
  std::uint16_t qh[kSuperBlock / 32];
};

// Per 8 values a grid index of 8 + 3 bits and the sign of the shift; per 16 values a scale of 3
// bits; d in the top nibbles of the four words of scales.
struct BlockIQ1_M {
  std::uint8_t qs[kSuperBlock / 8];
  std::uint8_t qh[kSuperBlock / 16];
  std::uint16_t scales[kSuperBlock / 64];
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);

}  // namespace specdec
