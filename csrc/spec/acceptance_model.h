// How often a drafter's tokens stand, learned from the rounds: by what the drafter says of a node
// where it says something, else by depth. Old rounds fade, so it follows a text that changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace specdec {

class AcceptanceModel {
 public:
  // Chance that a node at `depth` (0: follows the pending token) stands, given that its parent
  // does. confidence < 0: the drafter says nothing.
  double estimate(std::int32_t depth, float confidence) const;

  void observe(std::int32_t depth, float confidence, bool stood);

  // A round passed in which the drafter was not asked: what was known of it fades.
  void fade();

  // How much is known of nodes that follow the pending token, in observations.
  double known() const;

 private:
  struct Cell {
    double seen = 0.0, stood = 0.0;
    void add(bool stood_now);
    double mean(double prior) const;
  };
  static constexpr std::size_t kBuckets = 12, kDepths = 8;

  // [first node or deeper][confidence]
  std::array<std::array<Cell, kBuckets>, 2> by_confidence_{};
  std::array<Cell, kDepths> by_depth_{};
  // What was said and what came of it: how much the drafter is to be trusted before a bucket has
  // samples of its own.
  double claimed_ = 0.0, claims_stood_ = 0.0;
};

}  // namespace specdec
