#include "model/rope.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/math.h"

namespace specdec {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

// The (fractional) pair index whose wavelength makes `rotations` turns over the original context:
// arXiv 2309.00071, section 3.2.
double correction_pair(const RopeConfig& config, double rotations) {
  return config.dims * log_f64(config.original_context / (rotations * kTwoPi)) /
         (2.0 * log_f64(config.base));
}

// 1 for high frequencies (kept), 0 for low ones (interpolated), a ramp between.
double yarn_keep_share(const RopeConfig& config, std::int32_t pair) {
  double first = correction_pair(config, config.beta_fast);
  double last = correction_pair(config, config.beta_slow);
  if (config.yarn_whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  const double low = std::max(0.0, first), high = std::min(config.dims - 1.0, last);
  const double ramp = (pair - low) / std::max(0.001, high - low);
  return 1.0 - std::clamp(ramp, 0.0, 1.0);
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config, std::span<const float> freq_factors) {
  const std::int32_t pairs = config.dims / 2;
  SPECDEC_CHECK(freq_factors.empty() || freq_factors.size() == static_cast<std::size_t>(pairs),
                freq_factors.size(), " frequency factors for ", pairs, " pairs");
  for (std::int32_t i = 0; i < pairs; ++i) {
    double frequency = exp_f64(-2.0 * i / config.dims * log_f64(config.base));
    if (!freq_factors.empty()) frequency /= freq_factors[static_cast<std::size_t>(i)];
    double scaled = frequency / config.factor;
    if (config.scaling == RopeScaling::kYarn) {
      const double keep = yarn_keep_share(config, i);
      scaled = scaled * (1.0 - keep) + frequency * keep;
    }
    frequency_.push_back(config.scaling == RopeScaling::kNone ? frequency : scaled);
  }
  magnitude_ = config.attention_factor;
  if (config.scaling == RopeScaling::kYarn) {
    const double log_factor = 0.1 * std::max(0.0, log_f64(config.factor));
    magnitude_ *= (1.0 + log_factor) / (1.0 + config.log_multiplier * log_factor);
  }
}

void RopeTable::fill(std::span<const std::int32_t> positions, float* cos_sin) const {
  for (const std::int32_t position : positions) {
    for (const double frequency : frequency_) {
      const SinCos angle = sin_cos_f64(position * frequency);
      *cos_sin++ = static_cast<float>(angle.cos * magnitude_);
      *cos_sin++ = static_cast<float>(angle.sin * magnitude_);
    }
  }
}

ModelRope::ModelRope(const ModelConfig& config, const Factors& factors)
    : original_context_(config.rope.original_context),
      has_long_(!factors.long_context.empty()),
      usual_(config.rope, factors.usual),
      long_(config.rope, factors.long_context) {
  if (config.local_rope) local_.emplace(*config.local_rope, std::span<const float>());
}

const RopeTable& ModelRope::table(bool local, std::int32_t n_ctx) const {
  if (local && local_) return *local_;
  return has_long_ && n_ctx > original_context_ ? long_ : usual_;
}

}  // namespace specdec
