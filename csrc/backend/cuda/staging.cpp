#include "backend/cuda/staging.h"

#include <algorithm>
#include <cstring>

namespace specdec::cuda {
namespace {

constexpr std::size_t kAlignment = 16;
constexpr std::size_t kLeastOutgoing = std::size_t{256} << 10;
// What is larger is not for this round's verdict, and its waiting costs more than its copy.
constexpr std::size_t kMostIncoming = std::size_t{64} << 10;

}  // namespace

void Staging::send(StreamHandle stream, void* destination, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  if (sent_ + bytes > outgoing_.bytes()) {
    // Rare: a pass sends some hundred bytes, and a receive() begins anew.
    if (sent_ > 0) {
      ++waits_;
      wait_for(stream);
    }
    sent_ = 0;
    if (bytes > outgoing_.bytes()) {
      outgoing_ = PinnedMemory();
      outgoing_ = PinnedMemory(std::max(2 * bytes, kLeastOutgoing));
    }
  }
  std::byte* staged = outgoing_.data() + sent_;
  std::memcpy(staged, source, bytes);
  sent_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  queue_copy_to_device(stream, destination, staged, bytes);
}

void Staging::receive(StreamHandle stream, void* destination, const void* source,
                      std::size_t bytes) {
  ++waits_;
  if (bytes == 0 || bytes > kMostIncoming) {
    copy_to_host(stream, destination, source, bytes);
  } else {
    if (incoming_.bytes() == 0) incoming_ = PinnedMemory(kMostIncoming);
    copy_to_host(stream, incoming_.data(), source, bytes);
    std::memcpy(destination, incoming_.data(), bytes);
  }
  sent_ = 0;
}

}  // namespace specdec::cuda
