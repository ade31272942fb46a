// The likeliest tokens of a distribution in host memory: what the host backends share.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace specdec {

// See Backend::top_tokens. dist.weight [vocab]
std::vector<TokenProb> top_tokens_on_host(const DistributionView& dist, std::int32_t vocab,
                                          std::int32_t count);

}  // namespace specdec
