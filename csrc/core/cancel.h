// A request's cancel flag: set from any thread, read by the engine between the layers of a pass.
#pragma once

#include <atomic>

namespace specdec {

class CancelFlag {
 public:
  void set() { flag_.store(true, std::memory_order_relaxed); }
  void clear() { flag_.store(false, std::memory_order_relaxed); }
  bool is_set() const { return flag_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> flag_{false};
};

}  // namespace specdec
