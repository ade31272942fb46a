// A stack of its own to run a function on, with switches in both directions.
#pragma once

#include <cstddef>
#include <memory>

namespace specdec::emu {

class Fiber {
 public:
  // `body` runs at the first resume() and must never return: it ends by a last suspend().
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();   // from outside: runs until the fiber suspends
  void suspend();  // from inside: back to the one who resumed
  // Did the fiber write past the end of its stack?
  bool overflowed() const;

  struct Context;

 private:
  std::unique_ptr<Context> context_;
};

}  // namespace specdec::emu
