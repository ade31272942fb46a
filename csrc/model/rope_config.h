// The keys of rotary positions (rope.*), read and checked.
#pragma once

#include <cstdint>

#include "model/config.h"

namespace specdec {

// Throws GgufError naming the key. `head_dim`: D.
RopeConfig read_rope(const KeyReader& keys, const GgufFile& file, std::int32_t head_dim,
                     std::int32_t trained_context);

// That of the layers with a window, where it differs from the others'. Throws GgufError.
std::optional<RopeConfig> read_local_rope(const KeyReader& keys, const ModelConfig& config);

}  // namespace specdec
