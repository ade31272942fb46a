// The CUDA backend as the rest of the library sees it. CMake picks who answers: the backend itself,
// a stub that says why it is absent, or the emulated device of the tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace specdec {

struct CudaInfo {
  bool built = false;
  bool emulated = false;      // kernels run on the CPU, for tests
  std::string reason;         // why it is not built
  std::string toolkit;        // "13.0"
  std::string architectures;  // "75;80;90;...": what the kernels were compiled for
};
CudaInfo cuda_info();

// "cuda" or "cuda:N" ("cuda_emu" or "cuda_emu:N" in the test extension); null for a name that is no
// CUDA device's. Throws BackendUnavailableError with the reason and the way out.
std::shared_ptr<const Backend> make_cuda_backend(const std::string& name);

// Runs the instructions that the kernels build on against what they are defined to do: a line for
// each that does something else. Throws as make_cuda_backend, and for a name of another backend.
std::vector<std::string> cuda_self_test(const std::string& device);

// Bytes a second that a copy of `bytes` bytes within the device's memory reads and writes, the best
// of several. Throws as cuda_self_test.
double cuda_copy_bandwidth(const std::string& device, std::size_t bytes);

}  // namespace specdec
