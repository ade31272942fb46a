// runtime.h over host memory.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/emu/device_arena.h"
#include "backend/cuda/emu/emulated_runtime.h"
#include "backend/cuda/runtime.h"
#include "core/environment.h"
#include "core/error.h"

namespace specdec {
namespace emu {
namespace {

struct QueuedStream {
  std::deque<std::function<void()>> work;
};

// What all threads share. Work runs under the lock, so one thing happens at a time.
class Device {
 public:
  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return arena_.allocate(bytes);
  }

  void release(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    drain_all();
    arena_.release(memory);
  }

  bool holds(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return arena_.holds(pointer, bytes);
  }

  QueuedStream* make_stream() {
    const std::lock_guard lock(mutex_);
    return streams_.emplace_back(std::make_unique<QueuedStream>()).get();
  }

  void remove(QueuedStream* stream) {
    const std::lock_guard lock(mutex_);
    drain(*stream);
    std::erase_if(streams_, [=](const auto& owned) { return owned.get() == stream; });
  }

  void push(QueuedStream& stream, std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    stream.work.push_back(std::move(work));
    if (!deferred_) drain(stream);
  }

  // memcpy when `stream` has nothing left to do; null: when none has.
  void copy(QueuedStream* stream, void* destination, const void* source, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (stream != nullptr) {
      drain(*stream);
    } else {
      drain_all();
    }
    const DeviceArena::Access access(arena_);
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }

  std::size_t in_use() {
    const std::lock_guard lock(mutex_);
    return arena_.bytes_in_use();
  }

 private:
  void drain(QueuedStream& stream) {
    if (stream.work.empty()) return;
    const DeviceArena::Access access(arena_);
    while (!stream.work.empty()) {
      const auto work = std::move(stream.work.front());
      stream.work.pop_front();
      work();
    }
  }
  void drain_all() {
    for (const auto& stream : streams_) drain(*stream);
  }

  std::recursive_mutex mutex_;
  const bool deferred_ = environment_emulator_deferred();
  DeviceArena arena_;
  std::vector<std::unique_ptr<QueuedStream>> streams_;
};

Device& device() {
  static Device instance;
  return instance;
}

QueuedStream& stream_of(cuda::StreamHandle handle) { return *static_cast<QueuedStream*>(handle); }

void check_range(const char* user, const void* pointer, std::size_t bytes) {
  if (bytes > 0 && !device().holds(pointer, bytes)) {
    throw DeviceError(str(user, ": ", bytes, " bytes at ", pointer, " are not device memory"));
  }
}

}  // namespace

void check_device_pointer(const char* user, const void* pointer) {
  if (pointer != nullptr && !device().holds(pointer, 0)) {
    throw DeviceError(str(user, ": the argument ", pointer, " is not device memory"));
  }
}

void queue(cuda::StreamHandle stream, std::function<void()> work) {
  device().push(stream_of(stream), std::move(work));
}

std::size_t device_bytes_in_use() { return device().in_use(); }

}  // namespace emu

namespace cuda {

int device_count(std::string*) { return 1; }
DeviceProperties device_properties(int) { return {"emulated device", 9, 0, std::size_t{8} << 30}; }
void select_device(int) {}
void check_kernels_run(int) {}

void* allocate_device(std::size_t bytes) { return emu::device().allocate(bytes); }
void free_device(void* memory) noexcept { emu::device().release(memory); }
StreamHandle create_stream() { return emu::device().make_stream(); }
void destroy_stream(StreamHandle stream) noexcept { emu::device().remove(&emu::stream_of(stream)); }

void copy_to_device(void* destination, const void* host_source, std::size_t bytes) {
  emu::check_range("copy_to_device", destination, bytes);
  emu::device().copy(nullptr, destination, host_source, bytes);
}

void queue_copy_to_device(StreamHandle stream, void* destination, const void* host_source,
                          std::size_t bytes) {
  if (bytes == 0) return;
  emu::check_range("queue_copy_to_device", destination, bytes);
  const auto* first = static_cast<const std::byte*>(host_source);
  emu::queue(stream, [destination, copy = std::vector<std::byte>(first, first + bytes)] {
    std::memcpy(destination, copy.data(), copy.size());
  });
}

void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes) {
  emu::check_range("copy_to_host", source, bytes);
  emu::device().copy(&emu::stream_of(stream), host_destination, source, bytes);
}

}  // namespace cuda
}  // namespace specdec
