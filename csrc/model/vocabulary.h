// The part of the vocabulary that the engine itself needs: which ids are real, and what they stand
// for.
#pragma once

#include <cstdint>

#include "gguf/metadata.h"

namespace specdec {

// Ids [0, size) are real tokens. Trailing entries that converters add to fill the embedding up to a
// round number (token type UNUSED) are padding: never sampled, never compared. Throws GgufError if
// the token list is missing or malformed.
std::int32_t real_vocabulary_size(const Metadata& metadata);

}  // namespace specdec
