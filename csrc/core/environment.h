// The environment variables that the library reads, all of them, each read here and nowhere else.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace specdec {

// SPECDEC_CPU_ISA: forces the level of the CPU kernels ("scalar", "avx2", ...). Empty counts as
// unset.
std::optional<std::string> environment_cpu_isa();

// Settings of the emulated CUDA device that tests run kernels on (backend/cuda/emu).
// SPECDEC_EMU_ORDER=reverse: lanes and blocks run in descending order.
bool environment_emulator_reversed();
// SPECDEC_EMU_DEFER=1: queued work runs only when somebody waits for it.
bool environment_emulator_deferred();
// SPECDEC_EMU_DEVICES, SPECDEC_EMU_CAPABILITY (90 is 9.0), SPECDEC_EMU_MEMORY (bytes of each): what
// the devices are; read whenever somebody asks.
struct EmulatedDevices {
  int count = 2;
  int capability = 90;
  std::size_t memory_bytes = std::size_t{2} << 30;
};
EmulatedDevices environment_emulated_devices();

}  // namespace specdec
