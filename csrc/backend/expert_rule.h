// Which experts a row of a mixture goes to, and with what weights: one copy for all backends, host
// and device.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/math.h"

namespace specdec {

// Most experts of a mixture.
inline constexpr std::int32_t kMaxExperts = 1024;

// Does expert `a` come before expert `b`? By the larger logit, a NaN counting as the smallest; ties
// by the lower id.
SPECDEC_HD inline bool expert_precedes(float logit_a, std::int32_t a, float logit_b,
                                       std::int32_t b) {
  const bool nan_a = logit_a != logit_a, nan_b = logit_b != logit_b;
  if (nan_a || nan_b) return nan_a == nan_b ? a < b : nan_b;
  return logit_a == logit_b ? a < b : logit_a > logit_b;
}

// The `used` <= n experts that come first, by ascending id. weight = exp(logit - max) / sum *
// scale, the sum running over the used experts or over all, by ascending id. logits [n], ids and
// weights [used]
SPECDEC_HD inline void choose_experts(const float* logits, std::int32_t n, std::int32_t used,
                                      bool softmax_of_used, float scale, std::int32_t* ids,
                                      float* weights) {
  const auto better = [&](std::int32_t a, std::int32_t b) {
    return expert_precedes(logits[a], a, logits[b], b);
  };
  // ids[0, found) is kept sorted best first.
  std::int32_t found = 0;
  for (std::int32_t id = 0; id < n; ++id) {
    if (found == used && !better(id, ids[used - 1])) continue;
    std::int32_t place = found < used ? found++ : used - 1;
    for (; place > 0 && better(id, ids[place - 1]); --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
  const float max = logits[ids[0]];
  for (std::int32_t i = 1; i < used; ++i) {  // by id
    const std::int32_t id = ids[i];
    std::int32_t place = i;
    for (; place > 0 && ids[place - 1] > id; --place) ids[place] = ids[place - 1];
    ids[place] = id;
  }
  float sum = 0.0f;
  if (!softmax_of_used) {
    for (std::int32_t id = 0; id < n; ++id) sum = sum + exp_f32(logits[id] - max);
  }
  for (std::int32_t i = 0; i < used; ++i) {
    weights[i] = exp_f32(logits[ids[i]] - max);
    if (softmax_of_used) sum = sum + weights[i];
  }
  for (std::int32_t i = 0; i < used; ++i) weights[i] = weights[i] / sum * scale;
}

}  // namespace specdec
