// Arguments that several bindings take.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/dtype.h"
#include "spec/draft_shape.h"

namespace specdec {

using RankPaths = std::vector<std::vector<std::int32_t>>;

// "f32", "f16" or "q8_0"
DType parse_kv_type(const std::string& name);

// "coupled" or "rejection"
AcceptRule parse_rule(const std::string& name);

// branches 0 and no paths: a chain.
DraftShape make_shape(std::int32_t max_draft, std::int32_t branches, RankPaths paths);

}  // namespace specdec
