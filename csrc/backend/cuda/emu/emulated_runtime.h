// The emulated device's streams and memory. Work runs at once, or with SPECDEC_EMU_DEFER=1 only
// when somebody waits for it, so that a host that reads too early shows.
#pragma once

#include <functional>

#include "backend/cuda/runtime.h"

namespace specdec::emu {

// Throws DeviceError unless `pointer` is null or memory of the stream's device; `user` names who
// would use it.
void check_device_pointer(cuda::StreamHandle stream, const char* user, const void* pointer);
void queue(cuda::StreamHandle stream, std::function<void()> work);

}  // namespace specdec::emu
