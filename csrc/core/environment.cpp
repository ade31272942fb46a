#include "core/environment.h"

#include <cstdlib>

namespace specdec {

std::optional<std::string> environment_cpu_isa() {
  const char* value = std::getenv("SPECDEC_CPU_ISA");
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace specdec
