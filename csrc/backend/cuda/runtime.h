// The device runtime as the backend uses it: memory, streams, copies. Implemented over cudart in
// runtime_cuda.cpp and over host memory in emu/runtime_emu.cpp. Every failure throws: DeviceError
// or OutOfMemoryError.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace specdec::cuda {

using StreamHandle = void*;

struct DeviceProperties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  std::size_t memory_bytes = 0;
};

// Number of devices; 0 with a reason (no driver, none visible) where there are none.
int device_count(std::string* reason);
DeviceProperties device_properties(int device);
// For the calling thread.
void select_device(int device);
// Whether this build holds code that runs on the device: throws BackendUnavailableError with what
// was compiled and what the device is.
void check_kernels_run(int device);

void* allocate_device(std::size_t bytes);
void free_device(void* memory) noexcept;
StreamHandle create_stream();
void destroy_stream(StreamHandle stream) noexcept;

// Waits until everything queued before, on any stream, is done.
void copy_to_device(void* destination, const void* host_source, std::size_t bytes);
// In the order of the stream; host_source is read before the call returns.
void queue_copy_to_device(StreamHandle stream, void* destination, const void* host_source,
                          std::size_t bytes);
// In the order of the stream, waits for it.
void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes);

// Memory of a device. RAII, movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(std::size_t bytes) : data_(allocate_device(bytes)), bytes_(bytes) {}
  ~DeviceMemory() { free_device(data_); }
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A queue of work on a device. RAII.
class Stream {
 public:
  Stream() : handle_(create_stream()) {}
  ~Stream() { destroy_stream(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamHandle handle() const { return handle_; }

 private:
  StreamHandle handle_;
};

}  // namespace specdec::cuda
