#include "spec/cost_model.h"

#include <algorithm>
#include <cmath>

namespace specdec {
namespace {

// Before measurements: a row more costs 0.57 passes (8 rows cost 5), as on the engines that are
// slow at it; what may be hoped is a tenth.
constexpr double kBelievedSlope = 0.57, kHopedSlope = 0.1;
// The share of the believed surplus that may be hoped for while samples are few or old.
constexpr double kHopeFew = 0.5;
constexpr std::size_t kFewSamples = 3;
constexpr std::size_t kPlainSamples = 4;
constexpr std::int64_t kOldPasses = 200;
constexpr double kDepthDecay = 0.998;
constexpr double kLeastDepthSpread = 128.0;  // standard deviation, in positions

}  // namespace

double ReadGrowth::of(double width) const {
  const double missed = std::pow(1.0 - used / experts, width);  // experts that no row chooses
  return 1.0 + expert_share * (experts * (1.0 - missed) / used - 1.0);
}

void RunningMedian::add(double sample) {
  if (samples_.size() < size_) {
    samples_.push_back(sample);
  } else {
    samples_[next_] = sample;
  }
  next_ = (next_ + 1) % size_;
}

double RunningMedian::middle(std::vector<double> samples) {
  const auto place = samples.begin() + static_cast<std::ptrdiff_t>((samples.size() - 1) / 2);
  std::nth_element(samples.begin(), place, samples.end());
  return *place;
}

double RunningMedian::value() const { return samples_.empty() ? 0.0 : middle(samples_); }

double RunningMedian::value_or(double expected) const {
  if (samples_.size() >= 3) return middle(samples_);
  std::vector<double> samples = samples_;
  samples.push_back(expected);
  return middle(std::move(samples));
}

CostModel::CostModel(const ReadGrowth& reads) : reads_(reads) {
  for (const std::int32_t widest : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 128}) {
    buckets_.push_back(Bucket{widest});
  }
}

// The slope of one-row passes over the depth; 0 until depths differ enough to tell it from noise.
void CostModel::learn_depth(std::int32_t depth, double ms) {
  // A disturbed pass says nothing about depth.
  if (knows_plain()) ms = std::min(ms, 1.5 * plain_ms(depth));
  weight_ = weight_ * kDepthDecay + 1.0;
  sum_depth_ = sum_depth_ * kDepthDecay + depth;
  sum_ms_ = sum_ms_ * kDepthDecay + ms;
  sum_depth2_ = sum_depth2_ * kDepthDecay + static_cast<double>(depth) * depth;
  sum_depth_ms_ = sum_depth_ms_ * kDepthDecay + depth * ms;
  const double mean_depth = sum_depth_ / weight_, mean_ms = sum_ms_ / weight_;
  const double variance = sum_depth2_ / weight_ - mean_depth * mean_depth;
  if (variance < kLeastDepthSpread * kLeastDepthSpread) return;
  const double slope = (sum_depth_ms_ / weight_ - mean_depth * mean_ms) / variance;
  // At most so much that the depth would be half of the cost.
  depth_slope_ = std::clamp(slope, 0.0, 0.5 * mean_ms / std::max(1.0, mean_depth));
}

void CostModel::observe(std::int32_t width, std::int32_t depth, double ms) {
  ++passes_seen_;
  if (width <= 1) {
    learn_depth(depth, ms);
    plain_.add(std::max(ms - depth_slope_ * depth, 0.5 * ms));
    last_plain_ = passes_seen_;
    return;
  }
  if (!knows_plain()) return;
  const double share = depth_slope_ * width * depth;
  const auto found = std::find_if(buckets_.begin(), buckets_.end(),
                                  [&](const Bucket& bucket) { return width <= bucket.widest; });
  Bucket& bucket = found == buckets_.end() ? buckets_.back() : *found;
  bucket.ratio.add(std::max(ms - share, 0.5 * ms) / plain_.value());
  bucket.width.add(width);
  bucket.last = passes_seen_;
}

bool CostModel::knows_plain() const { return plain_.count() >= kPlainSamples; }

double CostModel::plain_ms(std::int32_t depth) const {
  return plain_.count() == 0 ? 0.0 : plain_.value() + depth_slope_ * depth;
}

double CostModel::bucket_ratio(const Bucket& bucket, bool hopeful) const {
  const double prior = 1.0 + growth(1.0, bucket.width.value(), false);
  const double believed = std::max(1.0, bucket.ratio.value_or(prior));
  if (!hopeful) return believed;
  const bool sure = bucket.ratio.count() >= kFewSamples && passes_seen_ - bucket.last < kOldPasses;
  return sure ? believed : 1.0 + (believed - 1.0) * kHopeFew;
}

// Piecewise linear through the measured widths, never falling; beyond the widest one a row costs
// what it did on the way there.
double CostModel::ratio(double width, bool hopeful) const {
  double low_width = 1.0, low_ratio = 1.0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].ratio.count() == 0) continue;
    // A wider pass that was cheaper shows that this one was disturbed.
    double high_ratio = bucket_ratio(buckets_[i], hopeful);
    for (std::size_t wider = i + 1; wider < buckets_.size(); ++wider) {
      if (buckets_[wider].ratio.count() == 0) continue;
      high_ratio = std::min(high_ratio, bucket_ratio(buckets_[wider], hopeful));
    }
    const double high_width = std::max(buckets_[i].width.value(), low_width + 0.5);
    high_ratio = std::max(high_ratio, low_ratio);
    if (width <= high_width) {
      const double part = std::max(0.0, (width - low_width) / (high_width - low_width));
      const double between = low_ratio + part * (high_ratio - low_ratio);
      // Nothing of this width was measured: a step may lie beyond it.
      const bool gap = i > 0 && width <= buckets_[i - 1].widest;
      if (!hopeful || !gap) return between;
      return std::min(between, low_ratio + growth(low_width, width, true));
    }
    low_width = high_width;
    low_ratio = high_ratio;
  }
  const bool measured = low_width > 1.0;
  if (!measured) return low_ratio + growth(low_width, width, hopeful);
  return low_ratio + (low_ratio - 1.0) / (low_width - 1.0) * (width - low_width);
}

double CostModel::growth(double from, double to, bool hopeful) const {
  const double by_rows = (hopeful ? kHopedSlope : kBelievedSlope) * (to - from);
  const double by_reads = (hopeful ? kHopeFew : 1.0) * (reads_.of(to) - reads_.of(from));
  return std::max(by_rows, by_reads);
}

double CostModel::at_depth(double ratio, std::int32_t width, std::int32_t depth) const {
  if (!knows_plain()) return ratio;
  const double base = plain_.value(), share = depth_slope_ * depth;
  return (base * ratio + share * width) / (base + share);
}

double CostModel::passes(std::int32_t width, std::int32_t depth) const {
  return width <= 1 ? 1.0 : at_depth(ratio(width, false), width, depth);
}

double CostModel::hopeful_passes(std::int32_t width, std::int32_t depth) const {
  return width <= 1 ? 1.0 : at_depth(ratio(width, true), width, depth);
}

}  // namespace specdec
