// The Python object behind specdec_native._core.GgufFile; other bindings take it to share one
// mapping.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "gguf/reader.h"

namespace specdec {

struct GgufHandle {
  std::shared_ptr<const GgufFile> file;
  pybind11::object metadata_cache;  // the dict, built on first use (guarded by the GIL)
};

}  // namespace specdec
