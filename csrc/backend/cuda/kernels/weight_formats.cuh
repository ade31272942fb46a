// How the kernels read each quantised type: a Format names planes, scales, the zero point and, for
// some types, a codebook; see weight_layout.h for the bytes.
#pragma once

#include "backend/cuda/device_code.h"
#include "backend/cuda/weight_layout.h"
#include "core/codebooks.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/half.h"

namespace specdec::cuda {

template <typename T>
__device__ __forceinline__ T load_as(const std::uint8_t* p) {
  return *reinterpret_cast<const T*>(p);
}

// Eight words of four values each: a block of 32 of one row.
struct Quads {
  unsigned word[8];
};

__device__ __forceinline__ void read_nibbles(const std::uint8_t* block, int row, Quads* out) {
  const uint4 packed = load_as<uint4>(block + 16 * row);
  const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out->word[i] = words[i] & 0x0f0f0f0fu;
    out->word[i + 4] = (words[i] >> 4) & 0x0f0f0f0fu;
  }
}

__device__ __forceinline__ void merge_bits(const std::uint8_t* field, int row, int to, Quads* out) {
  const unsigned bits = load_as<unsigned>(field + 4 * row);
#pragma unroll
  for (int q = 0; q < 8; ++q) out->word[q] |= ((bits >> q) & 0x01010101u) << to;
}

__device__ __forceinline__ void merge_pairs(const std::uint8_t* field, int row, int to,
                                            Quads* out) {
  const uint2 pairs = load_as<uint2>(field + 8 * row);
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    const unsigned word = q < 4 ? pairs.x : pairs.y;
    out->word[q] |= ((word >> (2 * (q % 4))) & 0x03030303u) << to;
  }
}

__device__ __forceinline__ void read_bytes(const std::uint8_t* block, int row, Quads* out) {
  const uint4 low = load_as<uint4>(block + 16 * row);
  const uint4 high = load_as<uint4>(block + 16 * kGroupRows + 16 * row);
  const unsigned words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int q = 0; q < 8; ++q) out->word[q] = words[q];
}

template <Planes kPlanes>
__device__ __forceinline__ void read_planes(const std::uint8_t* block, int row, Quads* out) {
  constexpr int kNibbleField = 16 * kGroupRows, kPairField = 8 * kGroupRows;
  if constexpr (kPlanes == Planes::kBytes) {
    read_bytes(block, row, out);
  } else if constexpr (kPlanes == Planes::kPairs || kPlanes == Planes::kPairsAndBits) {
#pragma unroll
    for (int q = 0; q < 8; ++q) out->word[q] = 0;
    merge_pairs(block, row, 0, out);
    if constexpr (kPlanes == Planes::kPairsAndBits) merge_bits(block + kPairField, row, 2, out);
  } else {
    read_nibbles(block, row, out);
    if constexpr (kPlanes == Planes::kNibblesAndBits) merge_bits(block + kNibbleField, row, 4, out);
    if constexpr (kPlanes == Planes::kNibblesAndPairs) {
      merge_pairs(block + kNibbleField, row, 4, out);
    }
  }
}

// Quads t and t + 4 of a row: what a lane gives to a product of matrices.
template <Planes kPlanes>
__device__ __forceinline__ void read_pair(const std::uint8_t* block, int row, int t,
                                          unsigned (&out)[2]) {
  constexpr int kNibbleField = 16 * kGroupRows, kPairField = 8 * kGroupRows;
  constexpr bool kOfPairs = kPlanes == Planes::kPairs || kPlanes == Planes::kPairsAndBits;
  if constexpr (kPlanes == Planes::kBytes) {
    out[0] = load_as<unsigned>(block + 16 * row + 4 * t);
    out[1] = load_as<unsigned>(block + kNibbleField + 16 * row + 4 * t);
    return;
  }
  if constexpr (kOfPairs) {
    const uint2 pairs = load_as<uint2>(block + 8 * row);
    out[0] = (pairs.x >> (2 * t)) & 0x03030303u;
    out[1] = (pairs.y >> (2 * t)) & 0x03030303u;
  } else {
    const unsigned word = load_as<unsigned>(block + 16 * row + 4 * t);
    out[0] = word & 0x0f0f0f0fu;
    out[1] = (word >> 4) & 0x0f0f0f0fu;
  }
  if constexpr (kPlanes == Planes::kNibblesAndPairs) {
    const uint2 pairs = load_as<uint2>(block + kNibbleField + 8 * row);
    out[0] |= ((pairs.x >> (2 * t)) & 0x03030303u) << 4;
    out[1] |= ((pairs.y >> (2 * t)) & 0x03030303u) << 4;
  }
  if constexpr (kPlanes == Planes::kNibblesAndBits || kPlanes == Planes::kPairsAndBits) {
    constexpr int kTo = kOfPairs ? 2 : 4;
    const unsigned bits =
        load_as<unsigned>(block + (kOfPairs ? kPairField : kNibbleField) + 4 * row);
    out[0] |= ((bits >> t) & 0x01010101u) << kTo;
    out[1] |= ((bits >> (t + 4)) & 0x01010101u) << kTo;
  }
}

// values[4i..4i+3] of a codebook as a word.
SPECDEC_HD constexpr unsigned codebook_word(const Codebook& book, int i) {
  unsigned word = 0;
  for (int j = 0; j < 4; ++j) {
    word |= static_cast<unsigned>(static_cast<std::uint8_t>(book.values[4 * i + j])) << (8 * j);
  }
  return word;
}

// Four codes (0..15, a byte each) replaced by their signed values.
template <const Codebook& kBook>
__device__ __forceinline__ unsigned look_up(unsigned codes) {
  constexpr unsigned kWords[4] = {codebook_word(kBook, 0), codebook_word(kBook, 1),
                                  codebook_word(kBook, 2), codebook_word(kBook, 3)};
  // The low three bits of each code, as the nibbles that __byte_perm selects by.
  const unsigned low = codes & 0x07070707u;
  const unsigned paired = (low | (low >> 4)) & 0x00ff00ffu;
  const unsigned selector = (paired | (paired >> 8)) & 0xffffu;
  const unsigned first = __byte_perm(kWords[0], kWords[1], selector);
  const unsigned second = __byte_perm(kWords[2], kWords[3], selector);
  const unsigned upper = ((codes >> 3) & 0x01010101u) * 0xffu;
  return (first & ~upper) | (second & upper);
}

// For the types whose integers are the values themselves.
inline constexpr Codebook kNoCodebook = {{}, 0, 0, 1.0f};

// The scales of one block of one row; [1] where halves have their own.
struct RowScales {
  float d[2], m[2];
};

__device__ __forceinline__ float half_at(const std::uint8_t* field, int row) {
  return half_value(load_as<std::uint16_t>(field + 2 * row));
}
__device__ __forceinline__ float signed_at(const std::uint8_t* field, int row) {
  return static_cast<float>(static_cast<std::int8_t>(field[row]));
}

template <Planes kPlanesOf, Scales kScalesOf, int kZero, const Codebook& kBook = kNoCodebook>
struct Format {
  static constexpr Planes kPlanes = kPlanesOf;
  static constexpr Scales kScales = kScalesOf;
  static constexpr int kZeroPoint = kZero;
  static constexpr bool kHalves = kScales == Scales::kHalves || kScales == Scales::kHalvesAndMin ||
                                  kScales == Scales::kOddHalves;
  static constexpr bool kMins = kScales == Scales::kDAndM || kScales == Scales::kSuperAndMin ||
                                kScales == Scales::kHalvesAndMin;
  static constexpr int kParts = kHalves ? 2 : 1;
  static constexpr int kPlaneBytes = plane_bytes(kPlanes) * kGroupRows;
  static constexpr int kScaleBytes = scale_bytes(kScales) * kGroupRows;
  static constexpr int kHeaderBytes = header_bytes(kScales) * kGroupRows;
  static constexpr bool kHasCodebook = kBook.bits != 0;
  static constexpr float kUnit = kBook.unit;

  // Four stored integers as signed bytes.
  __device__ __forceinline__ static unsigned to_signed(unsigned stored) {
    if constexpr (kHasCodebook) return look_up<kBook>(stored);
    if constexpr (kZeroPoint == 0) return stored;
    // Byte by byte: the top bits keep the bytes from borrowing of each other.
    return ((stored | 0x80808080u) - 0x01010101u * kZeroPoint) ^ 0x80808080u;
  }

  // The values of a row. block: kPlaneBytes
  __device__ __forceinline__ static void values(const std::uint8_t* block, int row, Quads* out) {
    read_planes<kPlanes>(block, row, out);
#pragma unroll
    for (int q = 0; q < 8; ++q) out->word[q] = to_signed(out->word[q]);
  }
  // Of these, quads t and t + 4.
  __device__ __forceinline__ static void pair(const std::uint8_t* block, int row, int t,
                                              unsigned (&out)[2]) {
    read_pair<kPlanes>(block, row, t, out);
    out[0] = to_signed(out[0]);
    out[1] = to_signed(out[1]);
  }

  // scales: kScaleBytes; header: kHeaderBytes; sub: which block of its superblock it is. Every
  // product here is exact in float.
  __device__ __forceinline__ static RowScales scales(const std::uint8_t* scales,
                                                     const std::uint8_t* header, int sub, int row) {
    RowScales out = {};
    if constexpr (kScales == Scales::kD) {
      out.d[0] = half_at(scales, row);
    } else if constexpr (kScales == Scales::kPowerD) {
      const unsigned e = scales[row];
      out.d[0] = bits_to_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    } else if constexpr (kScales == Scales::kDAndM) {
      out.d[0] = half_at(scales, row);
      out.m[0] = half_at(scales + 2 * kGroupRows, row);
    } else {
      const float d = half_at(header, row) * kUnit;
      const std::uint8_t first = scales[row];
      if constexpr (kScales == Scales::kSuper) {
        out.d[0] = d * signed_at(scales, row);
      } else if constexpr (kScales == Scales::kSuperAndMin) {
        const int high = header[(4 + sub / 2) * kGroupRows + row] >> (4 * (sub % 2));
        out.d[0] = d * static_cast<float>((first & 15) | (high & 3) << 4);
        out.m[0] = half_at(header + 2 * kGroupRows, row) *
                   static_cast<float>((first >> 4) | (high & 12) << 2);
      } else if constexpr (kScales == Scales::kHalves) {
        out.d[0] = d * signed_at(scales, row);
        out.d[1] = d * signed_at(scales + kGroupRows, row);
      } else if constexpr (kScales == Scales::kHalvesAndMin) {
        const float min = half_at(header + 2 * kGroupRows, row);
        const std::uint8_t second = scales[kGroupRows + row];
        out.d[0] = d * static_cast<float>(first & 15);
        out.d[1] = d * static_cast<float>(second & 15);
        out.m[0] = min * static_cast<float>(first >> 4);
        out.m[1] = min * static_cast<float>(second >> 4);
      } else {
        out.d[0] = d * static_cast<float>(2 * (first & 15) + 1);
        out.d[1] = d * static_cast<float>(2 * (first >> 4) + 1);
      }
    }
    return out;
  }
};

using FormatQ4_0 = Format<Planes::kNibbles, Scales::kD, 8>;
using FormatQ4_1 = Format<Planes::kNibbles, Scales::kDAndM, 0>;
using FormatQ5_0 = Format<Planes::kNibblesAndBits, Scales::kD, 16>;
using FormatQ5_1 = Format<Planes::kNibblesAndBits, Scales::kDAndM, 0>;
using FormatQ8_0 = Format<Planes::kBytes, Scales::kD, 0>;
using FormatQ2_K = Format<Planes::kPairs, Scales::kHalvesAndMin, 0>;
using FormatQ3_K = Format<Planes::kPairsAndBits, Scales::kHalves, 4>;
using FormatQ4_K = Format<Planes::kNibbles, Scales::kSuperAndMin, 0>;
using FormatQ5_K = Format<Planes::kNibblesAndBits, Scales::kSuperAndMin, 0>;
using FormatQ6_K = Format<Planes::kNibblesAndPairs, Scales::kHalves, 32>;
using FormatIQ4_NL = Format<Planes::kNibbles, Scales::kD, 0, kCodebookIQ4>;
using FormatMXFP4 = Format<Planes::kNibbles, Scales::kPowerD, 0, kCodebookMXFP4>;
using FormatIQ4_XS = Format<Planes::kNibbles, Scales::kSuper, 0, kCodebookIQ4>;
using FormatIQ3_XXS = Format<Planes::kNibbles, Scales::kSuper, 0, kCodebookIQ3_XXS>;
using FormatIQ3_S = Format<Planes::kNibbles, Scales::kSuper, 0, kCodebookIQ3_S>;
using FormatIQ2_XXS = Format<Planes::kPairsAndBits, Scales::kSuper, 0, kCodebookIQ2>;
using FormatIQ2_XS = Format<Planes::kPairsAndBits, Scales::kOddHalves, 0, kCodebookIQ2>;  // and _S
using FormatIQ1_S = Format<Planes::kPairsAndBits, Scales::kSuper, 0, kCodebookIQ1>;
using FormatIQ1_M = Format<Planes::kPairsAndBits, Scales::kOddHalves, 0, kCodebookIQ1>;

// f.operator()<Format of the type>(). Throws for a float type.
template <class F>
void with_format(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kQ4_0:
      return f.template operator()<FormatQ4_0>();
    case DType::kQ4_1:
      return f.template operator()<FormatQ4_1>();
    case DType::kQ5_0:
      return f.template operator()<FormatQ5_0>();
    case DType::kQ5_1:
      return f.template operator()<FormatQ5_1>();
    case DType::kQ8_0:
      return f.template operator()<FormatQ8_0>();
    case DType::kQ2_K:
      return f.template operator()<FormatQ2_K>();
    case DType::kQ3_K:
      return f.template operator()<FormatQ3_K>();
    case DType::kQ4_K:
      return f.template operator()<FormatQ4_K>();
    case DType::kQ5_K:
      return f.template operator()<FormatQ5_K>();
    case DType::kQ6_K:
      return f.template operator()<FormatQ6_K>();
    case DType::kIQ4_NL:
      return f.template operator()<FormatIQ4_NL>();
    case DType::kMXFP4:
      return f.template operator()<FormatMXFP4>();
    case DType::kIQ4_XS:
      return f.template operator()<FormatIQ4_XS>();
    case DType::kIQ3_XXS:
      return f.template operator()<FormatIQ3_XXS>();
    case DType::kIQ3_S:
      return f.template operator()<FormatIQ3_S>();
    case DType::kIQ2_XXS:
      return f.template operator()<FormatIQ2_XXS>();
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return f.template operator()<FormatIQ2_XS>();
    case DType::kIQ1_S:
      return f.template operator()<FormatIQ1_S>();
    case DType::kIQ1_M:
      return f.template operator()<FormatIQ1_M>();
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  throw InternalError("a float type in a quantised product");
}

}  // namespace specdec::cuda
