// In builds without the CUDA backend.
#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec {

CudaInfo cuda_info() { return {false, false, SPECDEC_CUDA_REASON, "", ""}; }

std::shared_ptr<const Backend> make_cuda_backend(const std::string& name) {
  if (name != "cuda" && !name.starts_with("cuda:")) return nullptr;
  throw BackendUnavailableError(str("device '", name, "' is not to be had: ", SPECDEC_CUDA_REASON,
                                    "; use device='cpu', or build with -DSPECDEC_CUDA=ON"));
}

std::vector<std::string> cuda_self_test(const std::string& device) {
  make_cuda_backend(device);
  throw InvalidArgument(str("'", device, "' is no CUDA device"));
}

double cuda_copy_bandwidth(const std::string& device, std::size_t) {
  make_cuda_backend(device);
  throw InvalidArgument(str("'", device, "' is no CUDA device"));
}

}  // namespace specdec
