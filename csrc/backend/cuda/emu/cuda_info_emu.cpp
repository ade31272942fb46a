// In the test extension: the kernels run on the emulated devices, as "cuda_emu" and "cuda_emu:N".
#include "backend/cuda/device_choice.h"
#include "backend/cuda_info.h"

namespace specdec {

CudaInfo cuda_info() { return {true, true, "", "emulator", "90"}; }

std::shared_ptr<const Backend> make_cuda_backend(const std::string& name) {
  return cuda::open_device("cuda_emu", name);
}

}  // namespace specdec
