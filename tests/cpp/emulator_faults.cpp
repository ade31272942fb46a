// Kernels with the faults that the emulated device must find, each run once; prints "name: what the
// device said", or "ok" and the value that came out. tests/cuda_emu/test_emulator.py reads it.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "backend/cuda/launch.h"
#include "backend/cuda/staging.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void sound(float* out) {
  SPECDEC_SHARED(float, values, [kThreads]);
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  float sum = values[threadIdx.x ^ 32u];
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(kFullWarp, sum, apart);
  if (threadIdx.x == 0) *out = sum;  // of 32 ones
}

__global__ void missing_barrier(float* out) {
  SPECDEC_SHARED(float, value, [1]);
  if (threadIdx.x == 0) value[0] = 7.0f;
  if (threadIdx.x == kThreads - 1) *out = value[0];
}

__global__ void divergent_barrier(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  *out = 1.0f;
}

__global__ void early_return(float* out) {
  if (threadIdx.x >= 32) return;
  __syncthreads();
  *out = 1.0f;
}

__global__ void half_a_warp(float* out) {
  float value = 1.0f;
  if (threadIdx.x % 32 < 16) value = __shfl_xor_sync(kFullWarp, value, 1);
  *out = value;
}

__global__ void divergent_shuffles(float* out) {
  float value = 1.0f;
  if (threadIdx.x % 2 == 0) {
    value = __shfl_xor_sync(kFullWarp, value, 1);
  } else {
    value = __shfl_xor_sync(kFullWarp, value, 2);
  }
  *out = value;
}

__global__ void too_much_shared_memory(float* out) {
  SPECDEC_SHARED(float, values, [13000]);
  values[threadIdx.x] = 1.0f;
  *out = values[0];
}

__global__ void unasked_dynamic_memory(float* out) {
  SPECDEC_DYNAMIC_SHARED(float, values);
  *out = values[0];
}

// One element behind the end of an array.
__global__ void beyond_device_memory(float* out) {
  if (threadIdx.x == 0) out[1] = 1.0f;
}
__global__ void beyond_shared_memory(float* out) {
  SPECDEC_SHARED(float, values, [kThreads]);
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  const float* first = values;
  if (threadIdx.x == 0) *out = first[blockDim.x];
}

// A shuffle brings values over, but it does not order what lanes do to memory.
__global__ void order_by_shuffle(float* out) {
  SPECDEC_SHARED(float, value, [1]);
  if (threadIdx.x == 0) value[0] = 7.0f;
  const int zero = __shfl_sync(kFullWarp, 0, 0);
  if (threadIdx.x == 1) *out = value[zero];
}

// Both blocks write the same place.
__global__ void blocks_collide(float* out) {
  if (threadIdx.x == blockIdx.x) *out = 1.0f;
}

void report(const char* name, void (*kernel)(float*), int threads, bool host_pointer = false,
            unsigned blocks = 1) {
  const Stream stream;
  const DeviceMemory memory(sizeof(float));
  float host = 0.0f;
  try {
    launch(name, kernel, {blocks}, threads, 0, stream.handle(),
           host_pointer ? &host : memory.as<float>());
    copy_to_host(stream.handle(), &host, memory.data(), sizeof(host));
    std::printf("%s: ok %g\n", name, static_cast<double>(host));
  } catch (const std::exception& error) {
    std::printf("%s: %s\n", name, error.what());
  }
}

// What a host that follows a device pointer gets.
float read_from_the_host() {
  const DeviceMemory memory(sizeof(float));
  const float value = 5.0f;
  copy_to_device(memory.data(), &value, sizeof(value));
  return *static_cast<volatile float*>(memory.data());
}

// A copy back that does not wait would find what was there before.
void report_order_of_copies() {
  const Stream stream;
  const DeviceMemory memory(sizeof(float));
  float first = 3.0f, second = 0.0f;
  std::atomic<std::size_t> waits = 0;
  Staging staging(waits);
  staging.send(stream.handle(), memory.data(), &first, sizeof(first));
  first = 4.0f;  // the copy has what was there when it was queued
  staging.receive(stream.handle(), &second, memory.data(), sizeof(second));
  std::printf("copies: ok %g\n", static_cast<double>(second));
}

// Pinned memory is read when the stream gets there: whoever changes it before gets the change.
void report_early_reuse() {
  const Stream stream;
  const DeviceMemory memory(sizeof(float));
  const PinnedMemory pinned(sizeof(float));
  float value = 3.0f;
  std::memcpy(pinned.data(), &value, sizeof(value));
  queue_copy_to_device(stream.handle(), memory.data(), pinned.data(), sizeof(value));
  value = 4.0f;
  std::memcpy(pinned.data(), &value, sizeof(value));
  copy_to_host(stream.handle(), &value, memory.data(), sizeof(value));
  std::printf("early_reuse: ok %g\n", static_cast<double>(value));
}

__global__ void add_one(const float* from, float* to) {
  if (threadIdx.x == 0) *to = *from + 1.0f;
}

// A reader on another stream, with and without an event between.
void report_two_streams(const char* name, bool ordered) {
  const Stream writer, reader;
  const Event written;
  const DeviceMemory memory(2 * sizeof(float));
  float* values = memory.as<float>();
  const float start = 1.0f;
  copy_to_device(values, &start, sizeof(start));
  launch("add_one", add_one, {}, kThreads, 0, writer.handle(), values, values);
  record_event(written.handle(), writer.handle());
  launch("add_one", add_one, {}, kThreads, 0, writer.handle(), values, values);  // too late
  if (ordered) wait_for_event(reader.handle(), written.handle());
  launch("add_one", add_one, {}, kThreads, 0, reader.handle(), values, values + 1);
  float found = 0.0f;
  copy_to_host(reader.handle(), &found, values + 1, sizeof(found));
  std::printf("%s: ok %g\n", name, static_cast<double>(found));
}

// What is repeated are the pointers, and what they point to then.
void report_recording() {
  const Stream stream;
  const DeviceMemory memory(2 * sizeof(float));
  float* values = memory.as<float>();
  float found = 1.0f;
  copy_to_device(values, &found, sizeof(found));
  begin_recording(stream.handle());
  launch("add_one", add_one, {}, kThreads, 0, stream.handle(), values, values + 1);
  launch("add_one", add_one, {}, kThreads, 0, stream.handle(), values + 1, values);
  try {
    copy_to_host(stream.handle(), &found, values, sizeof(found));
  } catch (const std::exception& error) {
    std::printf("waiting_while_recording: %s\n", error.what());
  }
  const Graph graph(end_recording(stream.handle()));
  copy_to_host(stream.handle(), &found, values, sizeof(found));
  std::printf("recorded: ok %g\n", static_cast<double>(found));
  for (int i = 0; i < 3; ++i) run_graph(graph.handle(), stream.handle());
  copy_to_host(stream.handle(), &found, values, sizeof(found));
  std::printf("repeated: ok %g\n", static_cast<double>(found));
}

// Each device has memory of its own.
void report_other_device() {
  select_device(1);
  const DeviceMemory elsewhere(sizeof(float));
  select_device(0);
  const Stream stream;
  try {
    launch("sound", sound, {}, kThreads, 0, stream.handle(), elsewhere.as<float>());
  } catch (const std::exception& error) {
    std::printf("other_device: %s\n", error.what());
  }
}

void run_all() {
  report("sound", sound, kThreads);
  report("missing_barrier", missing_barrier, kThreads);
  report("divergent_barrier", divergent_barrier, kThreads);
  report("early_return", early_return, kThreads);
  report("half_a_warp", half_a_warp, kThreads);
  report("divergent_shuffles", divergent_shuffles, kThreads);
  report("too_much_shared_memory", too_much_shared_memory, kThreads);
  report("unasked_dynamic_memory", unasked_dynamic_memory, kThreads);
  report("half_warp_block", sound, 48);
  report("host_pointer", sound, kThreads, true);
  report_order_of_copies();
  report_early_reuse();
  report_two_streams("ordered_streams", true);
  report_two_streams("unordered_streams", false);
  report_recording();
  report_other_device();
  report("sound_again", sound, kThreads);
}

// What may end the process.
int run_alone(const std::string& name) {
  if (name == "read_from_the_host") return static_cast<int>(read_from_the_host());
  if (name == "sound") report("sound", sound, kThreads);
  if (name == "missing_barrier") report("missing_barrier", missing_barrier, kThreads);
  if (name == "beyond_device_memory") report("device", beyond_device_memory, kThreads);
  if (name == "beyond_shared_memory") report("shared", beyond_shared_memory, kThreads);
  if (name == "order_by_shuffle") report("shuffle", order_by_shuffle, kThreads);
  if (name == "blocks_collide") report("blocks", blocks_collide, kThreads, false, 2);
  return 0;
}

}  // namespace
}  // namespace specdec::cuda

int main(int count, char** arguments) {
  if (count > 1) return specdec::cuda::run_alone(arguments[1]);
  specdec::cuda::run_all();
  return 0;
}
