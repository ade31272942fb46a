// The device runtime as the backend uses it: memory, streams, copies. Implemented over cudart in
// runtime_cuda.cpp and over host memory in emu/runtime_emu.cpp. Every failure throws: DeviceError
// or OutOfMemoryError.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace specdec::cuda {

using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;

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
// Why no kernel of this build runs on the device; empty if they do.
std::string why_kernels_fail(int device);

struct DeviceMemoryUse {
  std::size_t free = 0, total = 0;
};
DeviceMemoryUse device_memory();
// Null where there is not so much.
void* try_allocate_device(std::size_t bytes);
// Throws OutOfMemoryError with the figures; null for no bytes.
void* allocate_device(std::size_t bytes);
void free_device(void* memory) noexcept;
StreamHandle create_stream();
void destroy_stream(StreamHandle stream) noexcept;

// At once, whatever the streams are doing: nothing that is queued may use the memory.
void copy_to_device(void* destination, const void* host_source, std::size_t bytes);
// Host memory that the device reads and writes itself.
void* allocate_pinned(std::size_t bytes);
void free_pinned(void* memory) noexcept;
// In the order of the stream, from pinned memory, which must stay as it is until then.
void queue_copy_to_device(StreamHandle stream, void* destination, const void* pinned_source,
                          std::size_t bytes);
void wait_for(StreamHandle stream);
// Within the device's memory, in the order of the stream.
void queue_device_copy(StreamHandle stream, void* destination, const void* source,
                       std::size_t bytes);
// In the order of the stream, waits for it.
void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes);

// timed: for ms_between.
EventHandle create_event(bool timed);
void destroy_event(EventHandle event) noexcept;
// The event stands for all that the stream has been given so far.
void record_event(EventHandle event, StreamHandle stream);
// What the stream is given from now on waits for what the event stands for now.
void wait_for_event(StreamHandle stream, EventHandle event);
// From when the device reached one to when it reached the other. Both are timed, and the host has
// waited for the work before them.
double ms_between(EventHandle first, EventHandle second);

// From here to end_recording the stream only notes what it is given, kernels alone. Waiting for it,
// copies from the host and allocations are errors until then.
void begin_recording(StreamHandle stream);
// What was noted, to be run any number of times; null where the device cannot.
GraphHandle end_recording(StreamHandle stream);
void run_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(GraphHandle graph) noexcept;

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

// Pinned host memory. RAII, movable.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(std::size_t bytes) : data_(allocate_pinned(bytes)), bytes_(bytes) {}
  ~PinnedMemory() { free_pinned(data_); }
  PinnedMemory(PinnedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// A point in a stream's work. RAII.
class Event {
 public:
  explicit Event(bool timed = false) : handle_(create_event(timed)) {}
  ~Event() { destroy_event(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  EventHandle handle() const { return handle_; }

 private:
  EventHandle handle_;
};

// Recorded work. RAII, movable.
class Graph {
 public:
  explicit Graph(GraphHandle handle) : handle_(handle) {}
  ~Graph() {
    if (handle_ != nullptr) destroy_graph(handle_);
  }
  Graph(Graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  GraphHandle handle() const { return handle_; }

 private:
  GraphHandle handle_;
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
