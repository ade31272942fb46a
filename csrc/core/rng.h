// Counter-based randomness: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy
// as 1, 2, 3"). A number depends only on its key (seed) and counter (position, purpose, lane),
// never on how many were drawn before, so drafting cannot change what the target draws. Host and
// device.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace specdec {

struct Philox4 {
  std::uint32_t x[4];
};

SPECDEC_HD inline Philox4 philox4x32_10(Philox4 counter, std::uint32_t key0, std::uint32_t key1) {
  constexpr std::uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(kMul0) * counter.x[0];
    const std::uint64_t p1 = static_cast<std::uint64_t>(kMul1) * counter.x[2];
    counter = Philox4{{static_cast<std::uint32_t>(p1 >> 32) ^ counter.x[1] ^ key0,
                       static_cast<std::uint32_t>(p1),
                       static_cast<std::uint32_t>(p0 >> 32) ^ counter.x[3] ^ key1,
                       static_cast<std::uint32_t>(p0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// What a random number is for; part of its key, so that no two uses share a coin.
enum class RngPurpose : std::uint32_t {
  kTargetDraw = 0,  // coupled noise, and the draw of recovered and bonus tokens
  kDraftDraw = 1,   // what a drafter draws in `rejection`
  kAccept = 2,      // the coin of one drafted token
};

// Where a random number is used. `position` is the index in the text of the token being drawn.
struct RngKey {
  std::uint64_t seed;
  std::uint64_t position;
  RngPurpose purpose;
  std::uint32_t lane;  // token id (Gumbel noise) or sibling index (coins)
};

SPECDEC_HD inline std::uint64_t random_u64(const RngKey& key) {
  const Philox4 counter = {{static_cast<std::uint32_t>(key.position),
                            static_cast<std::uint32_t>(key.position >> 32),
                            static_cast<std::uint32_t>(key.purpose), key.lane}};
  const Philox4 out = philox4x32_10(counter, static_cast<std::uint32_t>(key.seed),
                                    static_cast<std::uint32_t>(key.seed >> 32));
  return (static_cast<std::uint64_t>(out.x[1]) << 32) | out.x[0];
}

// Uniform in [0, 1) with 53 bits.
SPECDEC_HD inline double u64_to_unit(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

}  // namespace specdec
