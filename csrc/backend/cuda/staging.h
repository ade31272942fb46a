// Copies between a host that goes on at once and a device that comes to them later, through pinned
// memory. One stream's.
#pragma once

#include <atomic>
#include <cstddef>

#include "backend/cuda/runtime.h"

namespace specdec::cuda {

class Staging {
 public:
  // waits: grows with each wait for the stream.
  explicit Staging(std::atomic<std::size_t>& waits) : waits_(waits) {}

  // In the order of the stream; `source` may change as soon as the call returns.
  void send(StreamHandle stream, void* destination, const void* source, std::size_t bytes);
  // In the order of the stream, waits for it.
  void receive(StreamHandle stream, void* destination, const void* source, std::size_t bytes);

 private:
  std::atomic<std::size_t>& waits_;
  PinnedMemory outgoing_, incoming_;
  std::size_t sent_ = 0;  // of outgoing_: what the device may still have to read
};

}  // namespace specdec::cuda
