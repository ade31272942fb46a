// In builds with the CUDA backend.
#include <cuda_runtime_api.h>

#include <charconv>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec {
namespace {

// The N of "cuda:N", 0 for "cuda".
int device_number(const std::string& name, int count) {
  int number = 0;
  const std::string digits = name == "cuda" ? "0" : name.substr(5);
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number);
  if (digits.empty() || parsed.ptr != end || number < 0 || number >= count) {
    throw BackendUnavailableError(str("device '", name, "' is not to be had: there are ", count,
                                      " CUDA devices, 'cuda:0' to 'cuda:", count - 1, "'"));
  }
  return number;
}

}  // namespace

CudaInfo cuda_info() {
  const int version = CUDART_VERSION;
  return {true, false, "", str(version / 1000, ".", version % 1000 / 10),
          SPECDEC_CUDA_ARCHITECTURES};
}

std::shared_ptr<const Backend> make_cuda_backend(const std::string& name) {
  if (name != "cuda" && !name.starts_with("cuda:")) return nullptr;
  std::string reason;
  const int count = cuda::device_count(&reason);
  if (count == 0) {
    throw BackendUnavailableError(str("device '", name, "' is not to be had: ", reason,
                                      "; check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or use "
                                      "device='cpu'"));
  }
  return std::make_shared<cuda::CudaBackend>(name, device_number(name, count));
}

}  // namespace specdec
