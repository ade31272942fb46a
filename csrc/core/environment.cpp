#include "core/environment.h"

#include <cstdlib>
#include <string_view>

namespace specdec {
namespace {

bool has_value(const char* name, std::string_view expected) {
  const char* value = std::getenv(name);
  return value != nullptr && value == expected;
}

}  // namespace

std::optional<std::string> environment_cpu_isa() {
  const char* value = std::getenv("SPECDEC_CPU_ISA");
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool environment_emulator_reversed() { return has_value("SPECDEC_EMU_ORDER", "reverse"); }
bool environment_emulator_deferred() { return has_value("SPECDEC_EMU_DEFER", "1"); }

}  // namespace specdec
