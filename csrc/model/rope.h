// Rotary angles of the rows of a pass. Computed once per pass on the host, in double precision with
// the library's own sine and cosine, and shared by all layers; frequencies are fixed at load, so a
// cached row never depends on history.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"

namespace specdec {

class RopeTable {
 public:
  RopeTable() = default;
  // freq_factors: [dims / 2] divisors of the frequencies (`rope_freqs.weight`: Llama 3 scaling), or
  // empty.
  RopeTable(const RopeConfig& config, std::span<const float> freq_factors);

  // cos_sin [positions.size(), dims / 2, 2]
  void fill(std::span<const std::int32_t> positions, float* cos_sin) const;

  std::int32_t pairs() const { return static_cast<std::int32_t>(frequency_.size()); }

 private:
  std::vector<double> frequency_;  // [dims / 2] radians per position
  double magnitude_ = 1.0;         // YaRN's attention factor, folded into cosine and sine
};

}  // namespace specdec
