// What AddressSanitizer and ThreadSanitizer must be told about the emulated device. Nothing in
// other builds.
//
// ThreadSanitizer sees each lane as a thread of its own, and no order between them but the one that
// a kernel asks for: __syncthreads and __syncwarp. So it finds missing barriers, and accesses of
// different blocks to the same memory, although the lanes never run at the same time.
#pragma once

#include <cstddef>

#if defined(SPECDEC_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(SPECDEC_EMU_TSAN)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace specdec::emu {

#if defined(SPECDEC_EMU_ASAN)

// A fiber's or a thread's stack.
struct StackWatch {
  const void* bottom = nullptr;
  std::size_t bytes = 0;
  void* fake_stack = nullptr;

  void adopt_thread() {}  // its bounds are learnt when it is left
  void create(const void* stack, std::size_t size, const StackWatch*) {
    bottom = stack;
    bytes = size;
  }
  void destroy() {}
  void before_entry_from(StackWatch& from) {
    __sanitizer_start_switch_fiber(&from.fake_stack, bottom, bytes);
  }
  void arrived_from(StackWatch& from) {
    __sanitizer_finish_switch_fiber(fake_stack, &from.bottom, &from.bytes);
  }
};

inline void forbid(const void* memory, std::size_t bytes) {
  __asan_poison_memory_region(memory, bytes);
}
inline void permit(const void* memory, std::size_t bytes) {
  __asan_unpoison_memory_region(memory, bytes);
}

#else

#if defined(SPECDEC_EMU_TSAN)
struct StackWatch {
  void* fiber = nullptr;
  bool owned = false;

  void adopt_thread() { fiber = __tsan_get_current_fiber(); }
  void create(const void*, std::size_t, const StackWatch* same_thread) {
    owned = same_thread == nullptr;
    fiber = owned ? __tsan_create_fiber(0) : same_thread->fiber;
  }
  void destroy() {
    if (owned) __tsan_destroy_fiber(fiber);
  }
  void before_entry_from(StackWatch&) {
    __tsan_switch_to_fiber(fiber, __tsan_switch_to_fiber_no_sync);
  }
  void arrived_from(StackWatch&) {}
};
#else
struct StackWatch {
  void adopt_thread() {}
  void create(const void*, std::size_t, const StackWatch*) {}
  void destroy() {}
  void before_entry_from(StackWatch&) {}
  void arrived_from(StackWatch&) {}
};
#endif

inline void forbid(const void*, std::size_t) {}
inline void permit(const void*, std::size_t) {}

#endif

#if defined(SPECDEC_EMU_TSAN)

// What was done before published(x) is seen after observed(x).
inline void published(void* place) { __tsan_release(place); }
inline void observed(void* place) { __tsan_acquire(place); }

// While one lives, this lane's accesses are those of the device, not of the kernel.
struct Unwatched {
  Unwatched() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unwatched() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
};

#else

inline void published(void*) {}
inline void observed(void*) {}
struct Unwatched {
  Unwatched() {}
};

#endif

}  // namespace specdec::emu
