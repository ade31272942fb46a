// The arithmetic of sampling, one copy for every backend, host and device: what a filtered
// distribution is, how its mass is counted, and how a token is drawn from it. The backends differ
// only in how they search (sort, histogram, warp reduction), never in what they find.
//
// A row of logits becomes weights in (0, 1]:
//   z[i]      = (logit[i] - max logit) * (1 / temperature)        float, see scaled_logit
//   weight[i] = exp_f32(z[i]), 0 where removed                     float
//   mass[i]   = floor(weight[i] * 2^44)                            uint64
// and everything after that is integer arithmetic on masses, so the order of summation is
// irrelevant. A token whose mass is 0 (2^-44 of the likeliest) counts as removed.
//
// The whole chain, in this order: repetition penalty, presence and frequency penalty, bias (these
// change logits: penalised_logit); mask and padding, temperature, top-k, typical-p, top-p, min-p
// (these remove tokens). Tokens rank by z, higher first, ties by the lower id:
//   top-k: the first k.
//   typical-p: in an order of its own, see typical_rank.
//   top-p: the smallest prefix whose mass reaches p of what is left.
//   min-p: z >= z of the likeliest that is left + log(min_p), see min_p_floor.
// A NaN logit counts as -infinity. If nothing is left, the token is the lowest allowed id (0 if
// none is).
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/host_device.h"
#include "core/math.h"
#include "core/rng.h"

namespace specdec {

// The filters of one request. temperature 0 means argmax.
struct FilterParams {
  float temperature = 1.0f;
  std::int32_t top_k = 0;  // 0 = off
  float top_p = 1.0f;      // 1 = off
  float min_p = 0.0f;      // 0 = off
  float typical_p = 1.0f;  // 1 = off

  bool greedy() const { return temperature == 0.0f; }
};

// --- Penalties and bias --------------------------------------------------------------------------

// How tokens of the text so far are made less likely, or more.
struct PenaltyParams {
  float repetition = 1.0f;  // > 0; 1 = off; over prompt and output (arXiv 1909.05858)
  float presence = 0.0f;    // over the output; 0 = off
  float frequency = 0.0f;   // over the output; 0 = off

  bool active() const { return repetition != 1.0f || presence != 0.0f || frequency != 0.0f; }
};

// A token of the text so far, and how often it stands in the output; 0: only in the prompt.
struct TokenCount {
  TokenId id;
  std::int32_t output;
};

// A constant added to the logit of a token.
struct LogitBias {
  TokenId id;
  float value;  // finite, or -infinity: never
};

// The logit of a token that stands in the text: divided by the repetition penalty if positive, else
// multiplied by it; then less presence + frequency * (times in the output).
SPECDEC_HD inline float penalised_logit(float logit, const PenaltyParams& penalties,
                                        std::int32_t output_count) {
  const float factor = penalties.repetition;
  if (factor != 1.0f) logit = logit > 0.0f ? logit / factor : logit * factor;
  if (output_count == 0) return logit;
  const float repeated = penalties.frequency * static_cast<float>(output_count);
  return logit - (penalties.presence + repeated);
}

// --- Weights, masses and filters -----------------------------------------------------------------

inline constexpr double kMassUnit =
    17592186044416.0;  // 2^44: 2^19 tokens of weight 1 fit in 63 bits

SPECDEC_HD inline std::uint64_t weight_to_mass(float weight) {
  return static_cast<std::uint64_t>(static_cast<double>(weight) * kMassUnit);
}

// z of a logit; `max` is the largest allowed logit, greater than -infinity. The comparison keeps
// the likeliest token at 0 where max is +infinity or 1 / temperature overflows (0 * inf is a NaN).
SPECDEC_HD inline float scaled_logit(float logit, float max, float inverse_temperature) {
  return logit == max ? 0.0f : (logit - max) * inverse_temperature;
}

// The least z that min-p keeps, if the likeliest has 0. One conversion for all backends, so that
// none keeps a token more.
SPECDEC_HD inline float min_p_floor(float min_p) {
  return static_cast<float>(log_f64(static_cast<double>(min_p)));
}

// floor(a * b / 2^64)
SPECDEC_HD inline std::uint64_t mul_high_u64(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const std::uint64_t mid = a1 * b0 + ((a0 * b0) >> 32);
  const std::uint64_t mid2 = a0 * b1 + (mid & 0xffffffffu);
  return a1 * b1 + (mid >> 32) + (mid2 >> 32);
}

// The mass that a prefix must reach for top-p: ceil(top_p * total), at least 1.
SPECDEC_HD inline std::uint64_t top_p_target(float top_p, std::uint64_t total) {
  const double scaled = static_cast<double>(top_p) * 4294967296.0;  // p in 32-bit fixed point
  if (scaled >= 4294967296.0) return total;
  const std::uint64_t fixed = scaled <= 0.0 ? 0 : static_cast<std::uint64_t>(scaled);
  const std::uint64_t remainder = total * (fixed << 32);  // modulo 2^64
  const std::uint64_t target = mul_high_u64(total, fixed << 32) + (remainder != 0 ? 1 : 0);
  return target > 0 ? target : 1;
}

// Locally typical sampling (arXiv 2202.00666) ranks tokens by the distance of their surprisal -log
// prob from the entropy of the distribution, nearest first, ties by the lower id, and keeps the
// smallest prefix whose mass reaches typical_p. With prob[i] = exp(z[i]) / W the surprisal is
// log W - z[i] and the entropy log W - mean z, so the distance is |z[i] - mean z|: no logarithm,
// and mean z is a quotient of two integers.

// One token's share of the sum of mass * -z. weight * -z is at most 1/e.
SPECDEC_HD inline std::uint64_t surprisal_mass(float weight, float z) {
  return weight > 0.0f ? weight_to_mass(weight * -z) : 0;
}

// Mean z. surprisal: the sum of surprisal_mass; total: the sum of the masses, > 0.
SPECDEC_HD inline float mean_z(std::uint64_t surprisal, std::uint64_t total) {
  return static_cast<float>(-(static_cast<double>(surprisal) / static_cast<double>(total)));
}

// -|z - mean|: the rank of a token for typical-p, higher first.
SPECDEC_HD inline float typical_rank(float z, float mean) {
  const float below = z - mean, above = mean - z;
  return below < above ? below : above;
}

// Rank order of two candidates.
SPECDEC_HD inline bool ranks_before(float z_a, TokenId id_a, float z_b, TokenId id_b) {
  return z_a > z_b || (z_a == z_b && id_a < id_b);
}

// The last candidate kept by the filters; everything that ranks at or before it is kept.
struct Cutoff {
  float z;
  TokenId id;
};

SPECDEC_HD inline bool survives(const Cutoff& cut, float z, TokenId id) {
  return !ranks_before(cut.z, cut.id, z, id);
}

// A filtered distribution over V tokens: probability of i = weight_to_mass(weight[i]) / total.
struct DistributionView {
  const float* weight = nullptr;  // [V]; 0 = removed
  std::uint64_t total = 0;        // sum of the masses; > 0
};

SPECDEC_HD inline double probability(const DistributionView& dist, TokenId id) {
  return static_cast<double>(weight_to_mass(dist.weight[id])) / static_cast<double>(dist.total);
}

// --- Log-probabilities ---------------------------------------------------------------------------

// A NaN ranks as -infinity.
SPECDEC_HD inline float comparable_logit(float logit) {
  return logit == logit ? logit : bits_to_float(0xff800000u);
}

// Natural log-softmax of a raw logit: logit - max - log(total), total being the sum of the masses
// of scaled_logit(logit, max, 1) over the vocabulary. -infinity for a logit of -infinity or NaN.
SPECDEC_HD inline float log_probability(float logit, float max, std::uint64_t total) {
  logit = comparable_logit(logit);
  if (total == 0 || logit == bits_to_float(0xff800000u)) return bits_to_float(0xff800000u);
  const double z = logit == max ? 0.0 : static_cast<double>(logit) - static_cast<double>(max);
  return static_cast<float>(z - log_f64(static_cast<double>(total) / kMassUnit));
}

// --- Drawing with Gumbel noise -------------------------------------------------------------------
// argmax over i of log weight[i] + gumbel[i] is the same as argmin of exponential[i] / weight[i]
// (an exponential race; gumbel = -log exponential), which needs no logarithm for most tokens.
// The noise of token i depends only on (seed, position, purpose, i): a drafter that uses the same
// noise on its own distribution often draws the same token, and the target's draw never depends on
// what was drafted. Ties go to the lowest id.

// The uniform behind the noise, from 64 bits, in (0, 1]. exponential >= uniform, so a candidate
// with uniform > best_ratio * weight cannot win and needs no logarithm.
SPECDEC_HD inline double race_uniform(std::uint64_t seed, std::uint64_t position,
                                      RngPurpose purpose, TokenId id) {
  const std::uint64_t bits =
      random_u64(RngKey{seed, position, purpose, static_cast<std::uint32_t>(id)});
  return (static_cast<double>(bits) + 0.5) * 5.42101086242752217e-20;  // 2^-64
}

// exponential[i] / weight[i], the finishing time of candidate i.
SPECDEC_HD inline double race_time(double uniform, float weight) {
  const double exponential = neg_log1m_f64(uniform);
  return (exponential < 64.0 ? exponential : 64.0) / static_cast<double>(weight);
}

// The token drawn from `dist`, [V] weights, by the race. Serial form: the specification.
SPECDEC_HD inline TokenId race_draw(const DistributionView& dist, std::int32_t vocab,
                                    std::uint64_t seed, std::uint64_t position,
                                    RngPurpose purpose) {
  TokenId best = 0;
  double best_time = 1e300;
  for (TokenId id = 0; id < vocab; ++id) {
    const float weight = dist.weight[id];
    if (weight_to_mass(weight) == 0) continue;
    const double uniform = race_uniform(seed, position, purpose, id);
    if (uniform > best_time * static_cast<double>(weight)) continue;
    const double time = race_time(uniform, weight);
    if (time < best_time) {
      best_time = time;
      best = id;
    }
  }
  return best;
}

}  // namespace specdec
