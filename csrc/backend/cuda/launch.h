// Starting a kernel: launch(kernel, {blocks}, threads, shared bytes, stream, arguments...).
// Under nvcc a <<<>>> launch; else the emulated device runs it, after checking that every pointer
// among the arguments is device memory.
#pragma once

#include <cstddef>
#include <type_traits>

#include "backend/cuda/device_code.h"
#include "backend/cuda/runtime.h"
#if !defined(__CUDACC__)
#include <functional>
#include <tuple>

#include "backend/cuda/emu/emulated_runtime.h"
#endif

namespace specdec::cuda {

struct Grid {
  unsigned x = 1, y = 1, z = 1;
};

// ceil(count / per_block) as a grid dimension.
inline unsigned blocks_for(std::size_t count, std::size_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

#if defined(__CUDACC__)

// Throws DeviceError if the last launch failed; `kernel` names it in the message.
void check_launch(const char* kernel);

template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
            std::size_t shared_bytes, StreamHandle stream,
            std::type_identity_t<Parameters>... arguments) {
  kernel<<<dim3(grid.x, grid.y, grid.z), static_cast<unsigned>(threads), shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(arguments...);
  check_launch(name);
}

#else

template <typename... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, int threads,
            std::size_t shared_bytes, StreamHandle stream,
            std::type_identity_t<Parameters>... arguments) {
  const auto check = [&](const auto& argument) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(argument)>>) {
      emu::check_device_pointer(stream, name, argument);
    }
  };
  (check(arguments), ...);
  emu::queue(stream, [=, values = std::make_tuple(arguments...)] {
    emu::run_grid({grid.x, grid.y, grid.z}, static_cast<unsigned>(threads), shared_bytes,
                  [&] { std::apply(kernel, values); });
  });
}

#endif

}  // namespace specdec::cuda
