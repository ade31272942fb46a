// What loading any file of drafting heads shares.
#pragma once

#include <string>

#include "core/error.h"
#include "gguf/reader.h"

namespace specdec {

// Runs `work`; errors name the file, and those of a misfit say what would fit.
template <typename Work>
auto naming_head_file(const GgufFile& file, const std::string& path, Work&& work) {
  try {
    return naming_file(file, work);
  } catch (const IncompatibleModelsError& error) {
    throw IncompatibleModelsError(
        str(path, ": ", error.what(), "; heads draft for the model they were trained on only"));
  }
}

}  // namespace specdec
