// Stacks to run functions on, with direct switches from one to another. One thread at a time.
#pragma once

#include <cstddef>
#include <memory>

namespace specdec::emu {

class Fiber {
 public:
  // Stands for the calling thread on its own stack, so that a fiber can switch back to it.
  Fiber();
  // `body` starts at the first switch to the fiber and must never return. To ThreadSanitizer the
  // fiber is a thread of its own, or the one that `same_thread` is.
  Fiber(void (*body)(void*), void* argument, const Fiber* same_thread = nullptr);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, which must be what runs now; returns when something enters `from` again.
  void enter_from(Fiber& from);
  // Did the fiber write past the end of its stack?
  bool overflowed() const;

  struct Context;

 private:
  std::unique_ptr<Context> context_;
};

}  // namespace specdec::emu
