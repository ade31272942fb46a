// The arithmetic of acceptance, one copy for every backend, host and device.
//
// `rejection` (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318): a drafted token
// stands with probability min(1, target_prob / draft_prob); after a rejection the token is drawn
// from the normalised positive part of target - draft. Siblings of a tree are tried in order, each
// against the residual left by those before it (SpecInfer, arXiv 2305.09781). A deterministic
// proposal is a one-hot draft distribution: it stands with probability target_prob, and the
// residual is the target without that token.
//
// Probabilities are 62-bit fixed point here: the residual is a difference of integers, and its sum
// does not depend on the order of addition.
#pragma once

#include <cstdint>

#include "backend/sampling_rule.h"
#include "core/host_device.h"

namespace specdec {

inline constexpr double kProbUnit = 4611686018427387904.0;  // 2^62

// Probability in fixed point. Rounded down, so the sum over tokens is at most 2^62.
SPECDEC_HD inline std::uint64_t fixed_probability(std::uint64_t mass, std::uint64_t total) {
  const double prob = static_cast<double>(mass) / static_cast<double>(total);
  return static_cast<std::uint64_t>(prob * kProbUnit);
}

// max(0, target - draft): one token's share of the residual.
SPECDEC_HD inline std::uint64_t residual_mass(std::uint64_t target, std::uint64_t draft) {
  return target > draft ? target - draft : 0;
}

// Does the drafted token stand? `coin` is uniform in [0, 1). Strict, so a token that the target
// gives no probability is never accepted, whatever the coin; a draft probability of 0 (a dishonest
// drafter) cannot reject what the target would have drawn, nor accept what it would not.
// `target_left` is the mass of the (residual) target distribution, of which `target` is a part.
SPECDEC_HD inline bool accepts(double coin, std::uint64_t target, std::uint64_t target_left,
                               double draft_prob) {
  if (target == 0 || target_left == 0) return false;
  const double target_prob = static_cast<double>(target) / static_cast<double>(target_left);
  return coin * draft_prob < target_prob;
}

// A threshold uniform in [0, total) from 64 random bits: the first token whose running mass
// (ascending id) exceeds it is drawn.
SPECDEC_HD inline std::uint64_t draw_threshold(std::uint64_t bits, std::uint64_t total) {
  return mul_high_u64(bits, total);
}

}  // namespace specdec
