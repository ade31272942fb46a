#include "core/codebook_blocks.h"

#include <cstring>

#include "core/codebook_grids.h"

namespace specdec {
namespace {

// Low nibbles are values 0..15, high nibbles 16..31.
void split_nibbles(const std::uint8_t* qs, std::uint8_t* out) {
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = qs[i] & 15;
    out[16 + i] = static_cast<std::uint8_t>(qs[i] >> 4);
  }
}

std::uint32_t load_u32(const std::uint8_t* p) {
  return p[0] | (std::uint32_t{p[1]} << 8) | (std::uint32_t{p[2]} << 16) |
         (std::uint32_t{p[3]} << 24);
}

std::uint32_t nibble_at(const std::uint8_t* bytes, std::size_t i) {
  return static_cast<std::uint32_t>(bytes[i / 2] >> (4 * (i % 2))) & 15u;
}

// Seven stored signs; the eighth makes their number even.
std::uint32_t with_parity(std::uint32_t signs) {
  std::uint32_t parity = signs ^ (signs >> 4);
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return signs | ((parity & 1u) << 7);
}

// Eight codes of 2 bits of a grid entry, each with its bit of `signs` above it, in the bytes of a
// word. out [8]
void spread_8(std::uint64_t entry, std::uint64_t signs, std::uint8_t* out) {
  entry = (entry | (entry << 24)) & 0x000000ff000000ffu;
  entry = (entry | (entry << 12)) & 0x000f000f000f000fu;
  entry = (entry | (entry << 6)) & 0x0303030303030303u;
  signs = ((signs & 0xffu) * 0x0101010101010101u) & 0x8040201008040201u;  // bit i of byte i
  signs = ((signs + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
  const std::uint64_t codes = entry | (signs << 2);
  std::memcpy(out, &codes, sizeof(codes));
}

// The same for four codes of 3 bits. out [4]
void spread_4(std::uint32_t entry, std::uint32_t signs, std::uint8_t* out) {
  entry = (entry | (entry << 10)) & 0x003f003fu;
  entry = (entry | (entry << 5)) & 0x07070707u;
  signs = ((signs & 15u) * 0x01010101u) & 0x08040201u;
  signs = ((signs + 0x7f7f7f7fu) >> 7) & 0x01010101u;
  const std::uint32_t codes = entry | (signs << 3);
  std::memcpy(out, &codes, sizeof(codes));
}

// IQ1: 8 values of grid entry `index`, all shifted down if `down`.
void spread_ternary(std::size_t index, bool down, std::uint8_t* out) {
  spread_8(kGridIQ1[index], down ? 0xffu : 0u, out);
}

}  // namespace

void codebook_codes(const BlockIQ4_NL& block, std::size_t, std::uint8_t* out) {
  split_nibbles(block.qs, out);
}
void codebook_codes(const BlockMXFP4& block, std::size_t, std::uint8_t* out) {
  split_nibbles(block.qs, out);
}
void codebook_codes(const BlockIQ4_XS& block, std::size_t sub, std::uint8_t* out) {
  split_nibbles(block.qs + 16 * sub, out);
}
void codebook_codes(const BlockIQ3_XXS& block, std::size_t sub, std::uint8_t* out) {
  const std::uint32_t word = load_u32(block.signs_scales + 4 * sub);
  for (std::size_t g = 0; g < 8; ++g) {
    const std::uint32_t signs = with_parity((word >> (7 * (g / 2))) & 127u) >> (4 * (g % 2));
    spread_4(kGridIQ3_XXS[block.qs[8 * sub + g]], signs, out + 4 * g);
  }
}
void codebook_codes(const BlockIQ3_S& block, std::size_t sub, std::uint8_t* out) {
  for (std::size_t g = 0; g < 8; ++g) {
    const std::size_t high = (block.qh[sub] >> g) & 1u;
    const std::uint32_t signs = static_cast<std::uint32_t>(block.signs[4 * sub + g / 2]);
    spread_4(kGridIQ3_S[block.qs[8 * sub + g] | (high << 8)], signs >> (4 * (g % 2)), out + 4 * g);
  }
}
void codebook_codes(const BlockIQ2_XXS& block, std::size_t sub, std::uint8_t* out) {
  const std::uint8_t* bytes = block.qs + 8 * sub;
  const std::uint32_t word = load_u32(bytes + 4);
  for (std::size_t g = 0; g < 4; ++g) {
    spread_8(kGridIQ2_XXS[bytes[g]], with_parity((word >> (7 * g)) & 127u), out + 8 * g);
  }
}
void codebook_codes(const BlockIQ2_XS& block, std::size_t sub, std::uint8_t* out) {
  for (std::size_t g = 0; g < 4; ++g) {
    const std::uint32_t word = block.qs[4 * sub + g];
    spread_8(kGridIQ2_XS[word & 511u], with_parity(word >> 9), out + 8 * g);
  }
}
void codebook_codes(const BlockIQ2_S& block, std::size_t sub, std::uint8_t* out) {
  for (std::size_t g = 0; g < 4; ++g) {
    const std::size_t high = (block.qh[sub] >> (2 * g)) & 3u;
    spread_8(kGridIQ2_S[block.qs[4 * sub + g] | (high << 8)], block.signs[4 * sub + g],
             out + 8 * g);
  }
}
void codebook_codes(const BlockIQ1_S& block, std::size_t sub, std::uint8_t* out) {
  const std::uint32_t word = block.qh[sub];
  for (std::size_t g = 0; g < 4; ++g) {
    const std::size_t high = (word >> (3 * g)) & 7u;
    spread_ternary(block.qs[4 * sub + g] | (high << 8), (word & 0x8000u) != 0, out + 8 * g);
  }
}
void codebook_codes(const BlockIQ1_M& block, std::size_t sub, std::uint8_t* out) {
  for (std::size_t g = 0; g < 4; ++g) {
    const std::size_t high = nibble_at(block.qh, 4 * sub + g);
    spread_ternary(block.qs[4 * sub + g] | ((high & 7u) << 8), (high & 8u) != 0, out + 8 * g);
  }
}

int codebook_scale(const BlockIQ4_NL&, std::size_t) { return 1; }
int codebook_scale(const BlockMXFP4&, std::size_t) { return 1; }
int codebook_scale(const BlockIQ4_XS& block, std::size_t part) {
  const std::size_t sub = part / 2;
  const std::uint32_t high = (block.scales_h >> (2 * sub)) & 3u;
  return static_cast<int>(nibble_at(block.scales_l, sub) | (high << 4)) - 32;
}
int codebook_scale(const BlockIQ3_XXS& block, std::size_t part) {
  return static_cast<int>(2 * (load_u32(block.signs_scales + 4 * (part / 2)) >> 28) + 1);
}
int codebook_scale(const BlockIQ3_S& block, std::size_t part) {
  return static_cast<int>(2 * nibble_at(block.scales, part / 2) + 1);
}
int codebook_scale(const BlockIQ2_XXS& block, std::size_t part) {
  return static_cast<int>(2 * (load_u32(block.qs + 8 * (part / 2) + 4) >> 28) + 1);
}
int codebook_scale(const BlockIQ2_XS& block, std::size_t part) {
  return static_cast<int>(2 * nibble_at(block.scales, part) + 1);
}
int codebook_scale(const BlockIQ2_S& block, std::size_t part) {
  return static_cast<int>(2 * nibble_at(block.scales, part) + 1);
}
int codebook_scale(const BlockIQ1_S& block, std::size_t part) {
  return 2 * ((block.qh[part / 2] >> 12) & 7) + 1;
}
int codebook_scale(const BlockIQ1_M& block, std::size_t part) {
  return 2 * ((block.scales[part / 4] >> (3 * (part % 4))) & 7) + 1;
}

HalfBits codebook_d(const BlockIQ1_M& block) {
  std::uint32_t d = 0;
  for (std::size_t i = 0; i < 4; ++i) d |= (block.scales[i] & 0xf000u) >> (12 - 4 * i);
  return static_cast<HalfBits>(d);
}

std::uint16_t mxfp4_d(const BlockMXFP4& block) {
  return static_cast<std::uint16_t>(block.e < 2 ? 0x20 << block.e : (block.e - 1) << 7);
}

}  // namespace specdec
