// What the machine could do at best, for the bench to compare passes with: how fast memory can be
// read, and how many int8 multiply-adds the active kernels can do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/aligned_memory.h"
#include "core/thread_pool.h"

namespace specdec {

class MachineProbe {
 public:
  // Takes a buffer of buffer_bytes() at once. threads <= 0: one per physical core.
  explicit MachineProbe(std::int32_t threads);

  std::int32_t threads() const { return pool_.threads(); }
  // Much larger than the last cache.
  std::size_t buffer_bytes() const { return bytes_; }

  // Bytes per second of reading the whole buffer once, with one thread or with all.
  double read_bandwidth(bool all_threads);

  // Multiply-adds per second, over some 10 ms, on operands that never leave the first cache.
  double int8_peak(bool all_threads);

 private:
  // The seconds that body(task), which returns a number to keep, takes for all tasks.
  template <typename Body>
  double seconds(bool all_threads, std::size_t tasks, const Body& body);

  ThreadPool pool_;
  std::size_t bytes_ = 0;
  AlignedBytes buffer_;          // in huge pages where the system has them, like the weights
  std::size_t peak_blocks_ = 0;  // of one task of int8_peak
  std::uint64_t kept_ = 0;       // all results, so that no work can be left out
};

}  // namespace specdec
