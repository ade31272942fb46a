// What the device's memory can do at best, for tools that compare passes with it.
#include <algorithm>
#include <chrono>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec {

double cuda_copy_bandwidth(const std::string& device, std::size_t bytes) {
  const std::shared_ptr<const Backend> backend = make_cuda_backend(device);
  if (backend == nullptr) throw InvalidArgument(str("'", device, "' is no CUDA device"));
  if (bytes == 0) throw InvalidArgument("a copy of no bytes has no speed");
  const cuda::DeviceMemory from(bytes), to(bytes);
  const cuda::Stream stream;
  constexpr int kTurns = 5, kCopies = 8;  // the first turn warms up
  double best = 0.0;
  for (int turn = 0; turn < kTurns; ++turn) {
    cuda::wait_for(stream.handle());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) {
      cuda::queue_device_copy(stream.handle(), to.data(), from.data(), bytes);
    }
    cuda::wait_for(stream.handle());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * kCopies * static_cast<double>(bytes) / seconds.count());
  }
  return best;
}

}  // namespace specdec
