// runtime.h over the CUDA runtime.
#include "backend/cuda/runtime.h"

#include <cuda_runtime.h>

#include "backend/cuda_info.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // a failed call must not be reported again by the next
  throw DeviceError(str(what, " failed on the CUDA device: ", cudaGetErrorString(status)));
}

cudaStream_t raw(StreamHandle stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

// In probe.cu: empty, or why a kernel cannot run on the device.
std::string probe_kernel(int device);

void check_launch(const char* kernel);
void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

int device_count(std::string* reason) {
  int count = 0;  // an error leaves it alone
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  *reason = status == cudaSuccess ? "no CUDA device is visible" : cudaGetErrorString(status);
  return 0;
}

DeviceProperties device_properties(int device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "reading the device's properties");
  return {properties.name, properties.major, properties.minor, properties.totalGlobalMem};
}

void select_device(int device) { check(cudaSetDevice(device), "selecting the device"); }

void check_kernels_run(int device) {
  const DeviceProperties properties = device_properties(device);
  const std::string reason = probe_kernel(device);
  if (reason.empty()) return;
  throw BackendUnavailableError(
      str("the CUDA device ", device, " (", properties.name, ", compute capability ",
          properties.major, ".", properties.minor, ") cannot run this build's kernels, made for ",
          cuda_info().architectures, ": ", reason, "; rebuild with -DSPECDEC_CUDA_ARCHITECTURES=",
          properties.major, properties.minor, ", or use device='cpu'"));
}

void* allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes == 0) return memory;
  if (cudaMalloc(&memory, bytes) == cudaSuccess) return memory;
  cudaGetLastError();
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the device's free memory");
  constexpr double kMiB = 1024.0 * 1024.0;
  throw OutOfMemoryError(str("device memory is not enough: ", static_cast<double>(bytes) / kMiB,
                             " MiB are needed, ", static_cast<double>(free_bytes) / kMiB, " of ",
                             static_cast<double>(total_bytes) / kMiB,
                             " are free; use a smaller model or context, or device='cpu'"));
}

void free_device(void* memory) noexcept {
  if (memory != nullptr) cudaFree(memory);
}

// A blocking stream: copy_to_device, on the legacy default stream, waits for it.
StreamHandle create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream), "creating a stream");
  return stream;
}

void destroy_stream(StreamHandle stream) noexcept { cudaStreamDestroy(raw(stream)); }

void copy_to_device(void* destination, const void* host_source, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpy(destination, host_source, bytes, cudaMemcpyHostToDevice),
        "copying to the device");
}

void queue_copy_to_device(StreamHandle stream, void* destination, const void* host_source,
                          std::size_t bytes) {
  if (bytes == 0) return;
  // From pageable memory: the source is staged before the call returns.
  check(cudaMemcpyAsync(destination, host_source, bytes, cudaMemcpyHostToDevice, raw(stream)),
        "copying to the device");
}

void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes) {
  if (bytes > 0) {
    check(cudaMemcpyAsync(host_destination, source, bytes, cudaMemcpyDeviceToHost, raw(stream)),
          "copying to the host");
  }
  check(cudaStreamSynchronize(raw(stream)), "waiting for the device");
}

}  // namespace specdec::cuda
