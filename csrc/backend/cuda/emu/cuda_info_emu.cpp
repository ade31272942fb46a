// In the test extension: the kernels run on the emulated device, as "cuda_emu".
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda_info.h"

namespace specdec {

CudaInfo cuda_info() { return {true, true, "", "emulator", "90"}; }

std::shared_ptr<const Backend> make_cuda_backend(const std::string& name) {
  if (name != "cuda_emu") return nullptr;
  return std::make_shared<cuda::CudaBackend>(name, 0);
}

}  // namespace specdec
