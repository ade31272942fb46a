#include "backend/cuda/device_choice.h"

#include <charconv>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// The N of "FAMILY:N", 0 for "FAMILY".
int device_number(const std::string& family, const std::string& name, int count) {
  int number = 0;
  const std::string digits = name == family ? "0" : name.substr(family.size() + 1);
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number);
  if (digits.empty() || parsed.ptr != end || number < 0 || number >= count) {
    throw BackendUnavailableError(str("device '", name, "' is not to be had: there are ", count,
                                      " CUDA devices, '", family, ":0' to '", family, ":",
                                      count - 1, "'; use one of these, or device='cpu'"));
  }
  return number;
}

}  // namespace

std::shared_ptr<const Backend> open_device(const std::string& family, const std::string& name) {
  if (name != family && !name.starts_with(family + ":")) return nullptr;
  std::string reason;
  const int count = device_count(&reason);
  if (count == 0) {
    throw BackendUnavailableError(str("device '", name, "' is not to be had: ", reason,
                                      "; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use "
                                      "device='cpu'"));
  }
  return std::make_shared<CudaBackend>(name, device_number(family, name, count));
}

void check_kernels_run(int device) {
  const std::string reason = why_kernels_fail(device);
  if (reason.empty()) return;
  const DeviceProperties properties = device_properties(device);
  throw BackendUnavailableError(
      str("the CUDA device ", device, " (", properties.name, ", compute capability ",
          properties.major, ".", properties.minor, ") cannot run this build's kernels, made for ",
          cuda_info().architectures, ": ", reason, "; rebuild with -DSPECDEC_CUDA_ARCHITECTURES=",
          properties.major, properties.minor, ", or use device='cpu'"));
}

void* allocate_device(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (void* memory = try_allocate_device(bytes)) return memory;
  constexpr std::size_t kMiB = 1024 * 1024;
  const DeviceMemoryUse use = device_memory();
  throw OutOfMemoryError(str("device memory is not enough: ", (bytes + kMiB - 1) / kMiB,
                             " MiB more are needed, ", use.free / kMiB, " of ", use.total / kMiB,
                             " MiB are free; put fewer layers there (gpu_layers=N), lower n_ctx, "
                             "or use device='cpu'"));
}

}  // namespace specdec::cuda
