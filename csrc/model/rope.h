// Rotary angles of the rows of a pass. Computed once per pass on the host, in double precision with
// the library's own sine and cosine, and shared by all layers; frequencies are fixed at load, so a
// cached row never depends on history.
#pragma once

#include <cstdint>
#include <optional>
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

// All rotary tables of a model. Which one a cache's rows are rotated by depends on the layer and on
// the cache's capacity alone.
class ModelRope {
 public:
  // Divisors of the frequencies [dims / 2], or empty. `long_factors`: for caches beyond the
  // original context; the others for the rest. Local layers have none.
  struct Factors {
    std::vector<float> usual, long_context;
  };

  ModelRope() = default;
  ModelRope(const ModelConfig& config, const Factors& factors);

  const RopeTable& table(bool local, std::int32_t n_ctx) const;
  bool has_local() const { return local_.has_value(); }

 private:
  std::int32_t original_context_ = 0;
  bool has_long_ = false;
  RopeTable usual_, long_;
  std::optional<RopeTable> local_;
};

}  // namespace specdec
