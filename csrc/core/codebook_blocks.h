// Blocks of the types with a codebook (codebooks.h) taken apart, for decoding and for repacking:
// value i = d * codebook_scale(i / 16) * unit * values[code i], every product exact in float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/codebooks.h"
#include "core/quant_blocks.h"

namespace specdec {

inline constexpr const Codebook& codebook_of(const BlockIQ4_NL&) { return kCodebookIQ4; }
inline constexpr const Codebook& codebook_of(const BlockMXFP4&) { return kCodebookMXFP4; }
inline constexpr const Codebook& codebook_of(const BlockIQ4_XS&) { return kCodebookIQ4; }
inline constexpr const Codebook& codebook_of(const BlockIQ3_XXS&) { return kCodebookIQ3_XXS; }
inline constexpr const Codebook& codebook_of(const BlockIQ3_S&) { return kCodebookIQ3_S; }
inline constexpr const Codebook& codebook_of(const BlockIQ2_XXS&) { return kCodebookIQ2; }
inline constexpr const Codebook& codebook_of(const BlockIQ2_XS&) { return kCodebookIQ2; }
inline constexpr const Codebook& codebook_of(const BlockIQ2_S&) { return kCodebookIQ2; }
inline constexpr const Codebook& codebook_of(const BlockIQ1_S&) { return kCodebookIQ1; }
inline constexpr const Codebook& codebook_of(const BlockIQ1_M&) { return kCodebookIQ1; }

template <typename Block>
concept HasCodebook = requires(const Block& block) { codebook_of(block); };
// d alone; a scale for every 16 values. Otherwise: for every 32.
template <typename Block>
inline constexpr bool kOneScale =
    std::is_same_v<Block, BlockIQ4_NL> || std::is_same_v<Block, BlockMXFP4>;
template <typename Block>
inline constexpr bool kScalesOf16 =
    std::is_same_v<Block, BlockIQ2_XS> || std::is_same_v<Block, BlockIQ2_S> ||
    std::is_same_v<Block, BlockIQ1_M>;

// The codes of values [32 * sub, 32 * sub + 32). out [32]
void codebook_codes(const BlockIQ4_NL& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockMXFP4& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ4_XS& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ3_XXS& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ3_S& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ2_XXS& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ2_XS& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ2_S& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ1_S& block, std::size_t sub, std::uint8_t* out);
void codebook_codes(const BlockIQ1_M& block, std::size_t sub, std::uint8_t* out);

// The integer scale of values [16 * part, 16 * part + 16); the types without one: 1.
int codebook_scale(const BlockIQ4_NL& block, std::size_t part);
int codebook_scale(const BlockMXFP4& block, std::size_t part);
int codebook_scale(const BlockIQ4_XS& block, std::size_t part);
int codebook_scale(const BlockIQ3_XXS& block, std::size_t part);
int codebook_scale(const BlockIQ3_S& block, std::size_t part);
int codebook_scale(const BlockIQ2_XXS& block, std::size_t part);
int codebook_scale(const BlockIQ2_XS& block, std::size_t part);
int codebook_scale(const BlockIQ2_S& block, std::size_t part);
int codebook_scale(const BlockIQ1_S& block, std::size_t part);
int codebook_scale(const BlockIQ1_M& block, std::size_t part);

// d as a half.
template <typename Block>
HalfBits codebook_d(const Block& block) {
  return block.d;
}
HalfBits codebook_d(const BlockIQ1_M& block);

// d of MXFP4 as bfloat16 bits, exact: 2^(e - 128), of which the first two are subnormal.
std::uint16_t mxfp4_d(const BlockMXFP4& block);

}  // namespace specdec
