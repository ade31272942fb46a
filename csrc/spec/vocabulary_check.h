// May a draft model's token ids be handed to a target? Only if both map the same ids to the same
// strings.
#pragma once

#include "gguf/reader.h"

namespace specdec {

// Throws IncompatibleModelsError naming the first id that differs and both strings. Padding
// (trailing tokens marked unused, and embedding rows without a token) is not compared.
void check_same_vocabulary(const GgufFile& target, const GgufFile& draft);

}  // namespace specdec
