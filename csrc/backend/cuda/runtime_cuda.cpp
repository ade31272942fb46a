// runtime.h over the CUDA runtime.
#include "backend/cuda/runtime.h"

#include <cuda_runtime.h>

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

std::string why_kernels_fail(int device) { return probe_kernel(device); }

DeviceMemoryUse device_memory() {
  DeviceMemoryUse use;
  check(cudaMemGetInfo(&use.free, &use.total), "reading the device's free memory");
  return use;
}

void* try_allocate_device(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  check(status, "allocating memory");
  return memory;
}

void free_device(void* memory) noexcept {
  if (memory != nullptr) cudaFree(memory);
}

// Not a blocking stream: those must not be recorded while any thread uses the default stream.
StreamHandle create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  return stream;
}

void destroy_stream(StreamHandle stream) noexcept { cudaStreamDestroy(raw(stream)); }

void copy_to_device(void* destination, const void* host_source, std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(destination, host_source, bytes, cudaMemcpyHostToDevice, nullptr),
        "copying to the device");
  // Other streams do not wait for the default one.
  check(cudaStreamSynchronize(nullptr), "waiting for the device");
}

void* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  if (bytes > 0) check(cudaMallocHost(&memory, bytes), "allocating pinned memory");
  return memory;
}

void free_pinned(void* memory) noexcept {
  if (memory != nullptr) cudaFreeHost(memory);
}

void queue_copy_to_device(StreamHandle stream, void* destination, const void* pinned_source,
                          std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(destination, pinned_source, bytes, cudaMemcpyHostToDevice, raw(stream)),
        "copying to the device");
}

void wait_for(StreamHandle stream) {
  check(cudaStreamSynchronize(raw(stream)), "waiting for the device");
}

void queue_device_copy(StreamHandle stream, void* destination, const void* source,
                       std::size_t bytes) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, raw(stream)),
        "copying on the device");
}

void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes) {
  if (bytes > 0) {
    check(cudaMemcpyAsync(host_destination, source, bytes, cudaMemcpyDeviceToHost, raw(stream)),
          "copying to the host");
  }
  wait_for(stream);
}

EventHandle create_event(bool timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = timed ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event, flags), "creating an event");
  return event;
}

void destroy_event(EventHandle event) noexcept {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

void record_event(EventHandle event, StreamHandle stream) {
  check(cudaEventRecord(static_cast<cudaEvent_t>(event), raw(stream)), "recording an event");
}

void wait_for_event(StreamHandle stream, EventHandle event) {
  check(cudaStreamWaitEvent(raw(stream), static_cast<cudaEvent_t>(event), 0),
        "waiting for an event");
}

double ms_between(EventHandle first, EventHandle second) {
  float ms = 0.0f;
  check(
      cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(first), static_cast<cudaEvent_t>(second)),
      "reading the time between events");
  return ms;
}

void begin_recording(StreamHandle stream) {
  check(cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal), "recording a graph");
}

GraphHandle end_recording(StreamHandle stream) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  if (cudaStreamEndCapture(raw(stream), &graph) == cudaSuccess && graph != nullptr) {
    if (cudaGraphInstantiate(&ready, graph, 0) != cudaSuccess) ready = nullptr;
    cudaGraphDestroy(graph);
  }
  if (ready == nullptr) cudaGetLastError();  // it is answered by running without a graph
  return ready;
}

void run_graph(GraphHandle graph, StreamHandle stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), raw(stream)), "running a graph");
}

void destroy_graph(GraphHandle graph) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace specdec::cuda
