// Does the device run what was compiled? Only a real launch tells: an old device has no code of its
// own here, and an old driver cannot compile the PTX.
#include <string>

#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

__global__ void do_nothing() {}

}  // namespace

std::string probe_kernel(int device);
std::string probe_kernel(int device) {
  cudaError_t status = cudaSetDevice(device);
  cudaFuncAttributes attributes;
  if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, do_nothing);
  if (status == cudaSuccess) {
    do_nothing<<<1, 32>>>();
    status = cudaDeviceSynchronize();
  }
  cudaGetLastError();
  return status == cudaSuccess ? std::string() : std::string(cudaGetErrorString(status));
}

}  // namespace specdec::cuda
