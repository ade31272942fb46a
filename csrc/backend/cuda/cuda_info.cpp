// In builds with the CUDA backend.
#include <cuda_runtime_api.h>

#include "backend/cuda/device_choice.h"
#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec {
CudaInfo cuda_info() {
  const int version = CUDART_VERSION;
  return {true, false, "", str(version / 1000, ".", version % 1000 / 10),
          SPECDEC_CUDA_ARCHITECTURES};
}

std::shared_ptr<const Backend> make_cuda_backend(const std::string& name) {
  return cuda::open_device("cuda", name);
}

}  // namespace specdec
