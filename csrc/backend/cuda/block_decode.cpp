#include "backend/cuda/block_decode.h"

#include <cstring>

#include "core/codebook_blocks.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

HalfBits negated(HalfBits value) { return static_cast<HalfBits>(value ^ 0x8000u); }

// --- Integers. `sub`: which 32 values of a superblock. out [32] ---

void nibbles(const std::uint8_t* qs, std::uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = qs[i] & 15;
    out[16 + i] = qs[i] >> 4;
  }
}

// `width` bits at `shift` of 32 consecutive bytes, put at bit `to` of out.
void merge_fields(const std::uint8_t* bytes, int shift, int width, int to, std::uint8_t* out) {
  const int mask = (1 << width) - 1;
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<std::uint8_t>(out[i] | (((bytes[i] >> shift) & mask) << to));
  }
}

void merge_fifth_bits(const std::uint8_t* qh, std::uint8_t* out) {
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<std::uint8_t>(out[i] | (((qh[i / 8] >> (i % 8)) & 1) << 4));
  }
}

void decode_values(const BlockQ4_0& b, int, std::uint8_t* out) { nibbles(b.qs, out); }
void decode_values(const BlockQ4_1& b, int, std::uint8_t* out) { nibbles(b.qs, out); }
void decode_values(const BlockQ5_0& b, int, std::uint8_t* out) {
  nibbles(b.qs, out);
  merge_fifth_bits(b.qh, out);
}
void decode_values(const BlockQ5_1& b, int, std::uint8_t* out) {
  nibbles(b.qs, out);
  merge_fifth_bits(b.qh, out);
}
void decode_values(const BlockQ8_0& b, int, std::uint8_t* out) { std::memcpy(out, b.qs, 32); }
void decode_values(const BlockQ2_K& b, int sub, std::uint8_t* out) {
  merge_fields(b.qs + sub / 4 * 32, sub % 4 * 2, 2, 0, out);
}
void decode_values(const BlockQ3_K& b, int sub, std::uint8_t* out) {
  merge_fields(b.qs + sub / 4 * 32, sub % 4 * 2, 2, 0, out);
  merge_fields(b.hmask, sub, 1, 2, out);
}
void decode_values(const BlockQ4_K& b, int sub, std::uint8_t* out) {
  merge_fields(b.qs + sub / 2 * 32, sub % 2 * 4, 4, 0, out);
}
void decode_values(const BlockQ5_K& b, int sub, std::uint8_t* out) {
  merge_fields(b.qs + sub / 2 * 32, sub % 2 * 4, 4, 0, out);
  merge_fields(b.qh, sub, 1, 4, out);
}
void decode_values(const BlockQ6_K& b, int sub, std::uint8_t* out) {
  merge_fields(b.ql + sub / 4 * 64 + sub % 2 * 32, sub % 4 < 2 ? 0 : 4, 4, 0, out);
  merge_fields(b.qh + sub / 4 * 32, sub % 4 * 2, 2, 4, out);
}
template <HasCodebook Block>
void decode_values(const Block& b, int sub, std::uint8_t* out) {
  codebook_codes(b, static_cast<std::size_t>(sub), out);
}

// --- Scales ---

// d, and m where there is one.
template <typename Block>
void decode_scales(const Block& b, int, DecodedBlock* out) {
  out->header[0] = b.d;
  if constexpr (requires { b.m; }) out->header[1] = b.m;
}

void decode_scales(const BlockQ2_K& b, int sub, DecodedBlock* out) {
  out->header[0] = b.d;
  out->header[1] = negated(b.dmin);
  std::memcpy(out->scales, b.scales + 2 * sub, 2);
}

// Sixteen scales of 6 bits: low nibbles in bytes 0..7, the top bits in bytes 8..11.
void decode_scales(const BlockQ3_K& b, int sub, DecodedBlock* out) {
  out->header[0] = b.d;
  for (int half = 0; half < 2; ++half) {
    const int j = 2 * sub + half;
    const int low = (b.scales[j % 8] >> (j / 8 * 4)) & 15;
    const int high = (b.scales[8 + j % 4] >> (j / 4 * 2)) & 3;
    out->scales[half] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
  }
}

// Eight scales and minima of 6 bits: the first four in bytes 0..3 and 4..7, the others in the
// nibbles of bytes 8..11 with their top bits in those of the first.
void decode_six_bits(const std::uint8_t* bytes, int sub, DecodedBlock* out) {
  const int k = sub % 4;
  const int scale = sub < 4 ? bytes[k] & 63 : (bytes[8 + k] & 15) | (bytes[k] >> 6 << 4);
  const int min = sub < 4 ? bytes[4 + k] & 63 : (bytes[8 + k] >> 4) | (bytes[4 + k] >> 6 << 4);
  out->scales[0] = static_cast<std::uint8_t>(scale);
  out->scales[1] = static_cast<std::uint8_t>(min);
}
void decode_scales(const BlockQ4_K& b, int sub, DecodedBlock* out) {
  out->header[0] = b.d;
  out->header[1] = negated(b.dmin);
  decode_six_bits(b.scales, sub, out);
}
void decode_scales(const BlockQ5_K& b, int sub, DecodedBlock* out) {
  out->header[0] = b.d;
  out->header[1] = negated(b.dmin);
  decode_six_bits(b.scales, sub, out);
}

void decode_scales(const BlockQ6_K& b, int sub, DecodedBlock* out) {
  out->header[0] = b.d;
  std::memcpy(out->scales, b.scales + 2 * sub, 2);
}

void decode_scales(const BlockMXFP4& b, int, DecodedBlock* out) { out->scales[0] = b.e; }

template <HasCodebook Block>
void decode_scales(const Block& b, int sub, DecodedBlock* out) {
  out->header[0] = codebook_d(b);
  if constexpr (kOneScale<Block>) return;
  const auto part = 2 * static_cast<std::size_t>(sub);
  const int first = codebook_scale(b, part);
  if constexpr (kScalesOf16<Block>) {
    const int second = codebook_scale(b, part + 1);
    out->scales[0] = static_cast<std::uint8_t>((first / 2) | (second / 2 << 4));
  } else {
    out->scales[0] = static_cast<std::uint8_t>(first);
  }
}

template <typename Block>
void decode_as(const std::byte* source, std::size_t sub, DecodedBlock* out) {
  Block block;
  std::memcpy(&block, source, sizeof(block));
  *out = {};
  decode_values(block, static_cast<int>(sub), out->values);
  decode_scales(block, static_cast<int>(sub), out);
}

}  // namespace

bool is_quantized(DType dtype) {
  return dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16;
}

TypeLayout type_layout(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return {Planes::kNibbles, Scales::kD, 1};
    case DType::kMXFP4:
      return {Planes::kNibbles, Scales::kPowerD, 1};
    case DType::kQ4_1:
      return {Planes::kNibbles, Scales::kDAndM, 1};
    case DType::kQ5_0:
      return {Planes::kNibblesAndBits, Scales::kD, 1};
    case DType::kQ5_1:
      return {Planes::kNibblesAndBits, Scales::kDAndM, 1};
    case DType::kQ8_0:
      return {Planes::kBytes, Scales::kD, 1};
    case DType::kQ2_K:
      return {Planes::kPairs, Scales::kHalvesAndMin, kSubBlocks};
    case DType::kQ3_K:
      return {Planes::kPairsAndBits, Scales::kHalves, kSubBlocks};
    case DType::kQ4_K:
      return {Planes::kNibbles, Scales::kSuperAndMin, kSubBlocks};
    case DType::kQ5_K:
      return {Planes::kNibblesAndBits, Scales::kSuperAndMin, kSubBlocks};
    case DType::kQ6_K:
      return {Planes::kNibblesAndPairs, Scales::kHalves, kSubBlocks};
    case DType::kIQ4_XS:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
      return {Planes::kNibbles, Scales::kSuper, kSubBlocks};
    case DType::kIQ2_XXS:
    case DType::kIQ1_S:
      return {Planes::kPairsAndBits, Scales::kSuper, kSubBlocks};
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M:
      return {Planes::kPairsAndBits, Scales::kOddHalves, kSubBlocks};
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  throw InternalError(str(dtype_info(dtype).name, " is not a quantised type"));
}

void decode_block(DType dtype, const std::byte* source, std::size_t sub, DecodedBlock* out) {
  switch (dtype) {
    case DType::kQ4_0:
      return decode_as<BlockQ4_0>(source, sub, out);
    case DType::kQ4_1:
      return decode_as<BlockQ4_1>(source, sub, out);
    case DType::kQ5_0:
      return decode_as<BlockQ5_0>(source, sub, out);
    case DType::kQ5_1:
      return decode_as<BlockQ5_1>(source, sub, out);
    case DType::kQ8_0:
      return decode_as<BlockQ8_0>(source, sub, out);
    case DType::kQ2_K:
      return decode_as<BlockQ2_K>(source, sub, out);
    case DType::kQ3_K:
      return decode_as<BlockQ3_K>(source, sub, out);
    case DType::kQ4_K:
      return decode_as<BlockQ4_K>(source, sub, out);
    case DType::kQ5_K:
      return decode_as<BlockQ5_K>(source, sub, out);
    case DType::kQ6_K:
      return decode_as<BlockQ6_K>(source, sub, out);
    case DType::kIQ4_NL:
      return decode_as<BlockIQ4_NL>(source, sub, out);
    case DType::kMXFP4:
      return decode_as<BlockMXFP4>(source, sub, out);
    case DType::kIQ4_XS:
      return decode_as<BlockIQ4_XS>(source, sub, out);
    case DType::kIQ3_XXS:
      return decode_as<BlockIQ3_XXS>(source, sub, out);
    case DType::kIQ3_S:
      return decode_as<BlockIQ3_S>(source, sub, out);
    case DType::kIQ2_XXS:
      return decode_as<BlockIQ2_XXS>(source, sub, out);
    case DType::kIQ2_XS:
      return decode_as<BlockIQ2_XS>(source, sub, out);
    case DType::kIQ2_S:
      return decode_as<BlockIQ2_S>(source, sub, out);
    case DType::kIQ1_S:
      return decode_as<BlockIQ1_S>(source, sub, out);
    case DType::kIQ1_M:
      return decode_as<BlockIQ1_M>(source, sub, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  throw InternalError(str(dtype_info(dtype).name, " is not a quantised type"));
}

}  // namespace specdec::cuda
