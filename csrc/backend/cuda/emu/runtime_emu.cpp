// runtime.h over host memory.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/emu/device_arena.h"
#include "backend/cuda/emu/emulated_runtime.h"
#include "backend/cuda/runtime.h"
#include "core/environment.h"
#include "core/error.h"

namespace specdec {
namespace emu {
namespace {

using Clock = std::chrono::steady_clock;
using Work = std::function<void()>;

struct QueuedStream {
  int device = 0;
  std::deque<Work> work;
  std::uint64_t given = 0, done = 0;  // pieces of work
  bool recording = false;
  std::vector<Work> recorded;
};

// A point in a stream's work.
struct RecordedEvent {
  std::shared_ptr<QueuedStream> stream;
  std::uint64_t given = 0;
  std::shared_ptr<const Clock::time_point> reached;
};

// As with a real one, each thread has a device that its calls are about.
thread_local int selected_device = 0;

// What all threads share. Work runs under the lock, so one thing happens at a time.
class Device {
 public:
  void* allocate(int device, std::size_t bytes, std::size_t limit) {
    const std::lock_guard lock(mutex_);
    refuse_while_recording("an allocation");
    return arena_.allocate(device, bytes, limit);
  }

  void release(void* memory) {
    if (memory == nullptr) return;
    const std::lock_guard lock(mutex_);
    drain_all();
    arena_.release(memory);
  }

  int owner(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return arena_.owner(pointer, bytes);
  }

  QueuedStream* make_stream(int device) {
    const std::lock_guard lock(mutex_);
    QueuedStream* stream = streams_.emplace_back(std::make_shared<QueuedStream>()).get();
    stream->device = device;
    return stream;
  }

  void remove(QueuedStream* stream) {
    const std::lock_guard lock(mutex_);
    drain(*stream);
    std::erase_if(streams_, [=](const auto& owned) { return owned.get() == stream; });
  }

  void push(QueuedStream& stream, Work work) {
    const std::lock_guard lock(mutex_);
    if (stream.recording) {
      stream.recorded.push_back(std::move(work));
      return;
    }
    stream.work.push_back(std::move(work));
    ++stream.given;
    if (!deferred_) drain(stream);
  }

  void record(RecordedEvent& event, QueuedStream& stream) {
    const std::lock_guard lock(mutex_);
    refuse_while_recording("an event");
    const auto owned = std::find_if(streams_.begin(), streams_.end(),
                                    [&](const auto& one) { return one.get() == &stream; });
    auto reached = std::make_shared<Clock::time_point>();
    push(stream, [reached] { *reached = Clock::now(); });
    event = {*owned, stream.given, std::move(reached)};
  }

  double ms_between(const RecordedEvent& first, const RecordedEvent& second) {
    const std::lock_guard lock(mutex_);
    for (const RecordedEvent* event : {&first, &second}) {
      if (event->stream == nullptr || event->stream->done < event->given) {
        throw InternalError("the time of an event that the device has not reached");
      }
    }
    return std::chrono::duration<double, std::milli>(*second.reached - *first.reached).count();
  }

  // As the event stands now.
  void wait_in(QueuedStream& stream, const RecordedEvent& event) {
    push(stream, [this, event] {
      while (event.stream->done < event.given) run_next(*event.stream);
    });
  }

  void begin_recording(QueuedStream& stream) {
    const std::lock_guard lock(mutex_);
    stream.recording = true;
    ++recordings_;
  }

  std::vector<Work> end_recording(QueuedStream& stream) {
    const std::lock_guard lock(mutex_);
    stream.recording = false;
    --recordings_;
    return std::exchange(stream.recorded, {});
  }

  void wait(QueuedStream& stream) {
    const std::lock_guard lock(mutex_);
    refuse_while_recording("waiting");
    drain(stream);
  }

  void add_pinned(const void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    pinned_[static_cast<const std::byte*>(memory)] = bytes;
  }
  // The device may still be reading it.
  void remove_pinned(const void* memory) {
    const std::lock_guard lock(mutex_);
    drain_all();
    pinned_.erase(static_cast<const std::byte*>(memory));
  }
  bool is_pinned(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* first = static_cast<const std::byte*>(pointer);
    auto next = pinned_.upper_bound(first);
    if (next == pinned_.begin()) return false;
    --next;
    return first + bytes <= next->first + next->second;
  }

  void refuse_in_recording(const QueuedStream& stream, const char* what) {
    const std::lock_guard lock(mutex_);
    if (stream.recording) throw InternalError(str(what, " in work that is being recorded"));
  }

  // memcpy when `stream` has nothing left to do; null: at once.
  void copy(QueuedStream* stream, void* destination, const void* source, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    refuse_while_recording("a copy that waits");
    if (stream != nullptr) drain(*stream);
    const DeviceArena::Access access(arena_);
    if (bytes > 0) std::memcpy(destination, source, bytes);
  }

  std::size_t in_use(int device) {
    const std::lock_guard lock(mutex_);
    return arena_.bytes_in_use(device);
  }

 private:
  void drain(QueuedStream& stream) {
    while (!stream.work.empty()) run_next(stream);
  }
  void run_next(QueuedStream& stream) {
    const DeviceArena::Access access(arena_);
    const Work work = std::move(stream.work.front());
    stream.work.pop_front();
    ++stream.done;  // if it fails, too: nobody waits for it for ever
    work();
  }
  void drain_all() {
    for (const auto& stream : streams_) drain(*stream);
  }

  // As a real device: such calls end a recording of the same thread. Here that of any.
  void refuse_while_recording(const char* what) const {
    if (recordings_ > 0) throw InternalError(str(what, " while work is being recorded"));
  }

  std::recursive_mutex mutex_;
  int recordings_ = 0;
  std::map<const std::byte*, std::size_t> pinned_;
  const bool deferred_ = environment_emulator_deferred();
  DeviceArena arena_;
  std::vector<std::shared_ptr<QueuedStream>> streams_;
};

Device& device() {
  static Device instance;
  return instance;
}

QueuedStream& stream_of(cuda::StreamHandle handle) { return *static_cast<QueuedStream*>(handle); }

void check_range(int owner, const char* user, const void* pointer, std::size_t bytes) {
  if (bytes == 0) return;
  const int found = device().owner(pointer, bytes);
  if (found < 0) {
    throw DeviceError(str(user, ": ", bytes, " bytes at ", pointer, " are not device memory"));
  }
  if (found != owner) {
    throw DeviceError(str(user, ": ", bytes, " bytes at ", pointer, " are memory of device ", found,
                          ", not of device ", owner));
  }
}

}  // namespace

void check_device_pointer(cuda::StreamHandle stream, const char* user, const void* pointer) {
  if (pointer == nullptr) return;
  const int owner = device().owner(pointer, 0), wanted = stream_of(stream).device;
  if (owner < 0) {
    throw DeviceError(str(user, ": the argument ", pointer, " is not device memory"));
  }
  if (owner != wanted) {
    throw DeviceError(str(user, ": the argument ", pointer, " is memory of device ", owner,
                          ", but the stream is one of device ", wanted));
  }
}

void queue(cuda::StreamHandle stream, std::function<void()> work) {
  device().push(stream_of(stream), std::move(work));
}

}  // namespace emu

namespace cuda {

int device_count(std::string* reason) {
  const int count = environment_emulated_devices().count;
  if (count == 0) *reason = "no CUDA device is visible";
  return count;
}
DeviceProperties device_properties(int) {
  const EmulatedDevices devices = environment_emulated_devices();
  return {"emulated device", devices.capability / 10, devices.capability % 10,
          devices.memory_bytes};
}
void select_device(int device) { emu::selected_device = device; }
std::string why_kernels_fail(int) {
  // cuda_info_emu.cpp says that the kernels are made for it.
  constexpr int kCompiledFor = 90;
  const bool runs = environment_emulated_devices().capability >= kCompiledFor;
  return runs ? "" : "no kernel image is available for execution on the device";
}

DeviceMemoryUse device_memory() {
  const std::size_t total = environment_emulated_devices().memory_bytes;
  const std::size_t used = emu::device().in_use(emu::selected_device);
  return {total > used ? total - used : 0, total};
}
void* try_allocate_device(std::size_t bytes) {
  return emu::device().allocate(emu::selected_device, bytes,
                                environment_emulated_devices().memory_bytes);
}
void free_device(void* memory) noexcept { emu::device().release(memory); }
StreamHandle create_stream() { return emu::device().make_stream(emu::selected_device); }
void destroy_stream(StreamHandle stream) noexcept { emu::device().remove(&emu::stream_of(stream)); }

void copy_to_device(void* destination, const void* host_source, std::size_t bytes) {
  emu::check_range(emu::selected_device, "copy_to_device", destination, bytes);
  emu::device().copy(nullptr, destination, host_source, bytes);
}

void* allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = ::operator new(bytes);
  emu::device().add_pinned(memory, bytes);
  return memory;
}

void free_pinned(void* memory) noexcept {
  if (memory == nullptr) return;
  emu::device().remove_pinned(memory);
  ::operator delete(memory);
}

// Reads the source when the stream gets there, as a real device.
void queue_copy_to_device(StreamHandle stream, void* destination, const void* pinned_source,
                          std::size_t bytes) {
  if (bytes == 0) return;
  emu::QueuedStream& queued = emu::stream_of(stream);
  emu::check_range(queued.device, "queue_copy_to_device", destination, bytes);
  if (!emu::device().is_pinned(pinned_source, bytes)) {
    throw DeviceError(str("queue_copy_to_device: ", bytes, " bytes at ", pinned_source,
                          " are not pinned memory"));
  }
  emu::device().refuse_in_recording(queued, "a copy from the host");
  emu::queue(stream, [=] { std::memcpy(destination, pinned_source, bytes); });
}

void wait_for(StreamHandle stream) { emu::device().wait(emu::stream_of(stream)); }

void queue_device_copy(StreamHandle stream, void* destination, const void* source,
                       std::size_t bytes) {
  const int device = emu::stream_of(stream).device;
  emu::check_range(device, "queue_device_copy", destination, bytes);
  emu::check_range(device, "queue_device_copy", source, bytes);
  emu::queue(stream, [=] { std::memcpy(destination, source, bytes); });
}

void copy_to_host(StreamHandle stream, void* host_destination, const void* source,
                  std::size_t bytes) {
  emu::check_range(emu::stream_of(stream).device, "copy_to_host", source, bytes);
  emu::device().copy(&emu::stream_of(stream), host_destination, source, bytes);
}

EventHandle create_event(bool) { return new emu::RecordedEvent(); }
void destroy_event(EventHandle event) noexcept { delete static_cast<emu::RecordedEvent*>(event); }
void record_event(EventHandle event, StreamHandle stream) {
  emu::device().record(*static_cast<emu::RecordedEvent*>(event), emu::stream_of(stream));
}
void wait_for_event(StreamHandle stream, EventHandle event) {
  emu::device().refuse_in_recording(emu::stream_of(stream), "an event");
  emu::device().wait_in(emu::stream_of(stream), *static_cast<emu::RecordedEvent*>(event));
}

// A graph is the queued work with its arguments as they were: what should have been read from
// memory, but was an argument, is wrong when it is repeated.
double ms_between(EventHandle first, EventHandle second) {
  return emu::device().ms_between(*static_cast<emu::RecordedEvent*>(first),
                                  *static_cast<emu::RecordedEvent*>(second));
}
void begin_recording(StreamHandle stream) { emu::device().begin_recording(emu::stream_of(stream)); }
GraphHandle end_recording(StreamHandle stream) {
  return new std::vector<emu::Work>(emu::device().end_recording(emu::stream_of(stream)));
}
void run_graph(GraphHandle graph, StreamHandle stream) {
  for (const emu::Work& work : *static_cast<std::vector<emu::Work>*>(graph)) {
    emu::queue(stream, work);
  }
}
void destroy_graph(GraphHandle graph) noexcept {
  delete static_cast<std::vector<emu::Work>*>(graph);
}

}  // namespace cuda
}  // namespace specdec
