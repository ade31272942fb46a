#include "spec/acceptance_model.h"

#include <algorithm>

namespace specdec {
namespace {

constexpr double kPriorWeight = 3.0;      // observations that a prior counts for
constexpr double kFirstAcceptance = 0.6;  // before any observation, where nothing is said
constexpr double kFirstTrust = 0.75;      // of what is said, before any observation
constexpr double kTrustWeight = 4.0;
constexpr double kDecay = 0.97, kFade = 0.99;

// Lower bounds; finer towards 1, where a long draft lives or dies.
constexpr std::array<double, 12> kLowest = {0.0,  0.2,   0.35,  0.5,    0.625, 0.7,
                                            0.75, 0.825, 0.875, 0.9125, 0.94,  0.97};

std::size_t bucket_of(float confidence) {
  std::size_t bucket = 0;
  while (bucket + 1 < kLowest.size() && confidence >= kLowest[bucket + 1]) ++bucket;
  return bucket;
}

}  // namespace

void AcceptanceModel::Cell::add(bool stood_now) {
  seen = seen * kDecay + 1.0;
  stood = stood * kDecay + (stood_now ? 1.0 : 0.0);
}

double AcceptanceModel::Cell::mean(double prior) const {
  return (stood + kPriorWeight * prior) / (seen + kPriorWeight);
}

double AcceptanceModel::estimate(std::int32_t depth, float confidence) const {
  if (confidence < 0.0f) {
    double mean = kFirstAcceptance;
    for (std::size_t i = 0;
         i <= std::min<std::size_t>(static_cast<std::size_t>(depth), kDepths - 1); ++i) {
      mean = by_depth_[i].mean(mean);
    }
    return mean;
  }
  const double trust = (claims_stood_ + kTrustWeight * kFirstTrust) / (claimed_ + kTrustWeight);
  const std::size_t bucket = bucket_of(confidence);
  const double said = std::min(1.0, trust * static_cast<double>(confidence));
  const double first = by_confidence_[0][bucket].mean(said);
  return depth == 0 ? first : by_confidence_[1][bucket].mean(first);
}

void AcceptanceModel::observe(std::int32_t depth, float confidence, bool stood) {
  if (confidence < 0.0f) {
    by_depth_[std::min<std::size_t>(static_cast<std::size_t>(depth), kDepths - 1)].add(stood);
    return;
  }
  by_confidence_[depth == 0 ? 0 : 1][bucket_of(confidence)].add(stood);
  claimed_ = claimed_ * kDecay + static_cast<double>(confidence);
  claims_stood_ = claims_stood_ * kDecay + (stood ? 1.0 : 0.0);
}

void AcceptanceModel::fade() {
  for (auto& row : by_confidence_) {
    for (Cell& cell : row) cell = {cell.seen * kFade, cell.stood * kFade};
  }
  for (Cell& cell : by_depth_) cell = {cell.seen * kFade, cell.stood * kFade};
}

double AcceptanceModel::known() const {
  double sum = by_depth_[0].seen;
  for (const Cell& cell : by_confidence_[0]) sum += cell.seen;
  return sum;
}

}  // namespace specdec
