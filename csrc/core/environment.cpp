#include "core/environment.h"

#include <cstdlib>
#include <string_view>

namespace specdec {
namespace {

bool has_value(const char* name, std::string_view expected) {
  const char* value = std::getenv(name);
  return value != nullptr && value == expected;
}

// Leaves `value` alone where the variable is not set.
template <typename Number>
void read_number(const char* name, Number* value) {
  const char* text = std::getenv(name);
  if (text != nullptr) *value = static_cast<Number>(std::strtoull(text, nullptr, 10));
}

}  // namespace

std::optional<std::string> environment_cpu_isa() {
  const char* value = std::getenv("SPECDEC_CPU_ISA");
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

bool environment_emulator_reversed() { return has_value("SPECDEC_EMU_ORDER", "reverse"); }
bool environment_emulator_deferred() { return has_value("SPECDEC_EMU_DEFER", "1"); }

EmulatedDevices environment_emulated_devices() {
  EmulatedDevices devices;
  read_number("SPECDEC_EMU_DEVICES", &devices.count);
  read_number("SPECDEC_EMU_CAPABILITY", &devices.capability);
  read_number("SPECDEC_EMU_MEMORY", &devices.memory_bytes);
  return devices;
}

}  // namespace specdec
