#include "backend/cuda/emu/device_arena.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "core/error.h"

namespace specdec::emu {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr int kPoison = 0xff;  // NaN in every float format

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

DeviceArena::DeviceArena() {
  void* memory =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(memory);
}

DeviceArena::~DeviceArena() { munmap(base_, kBytes); }

void* DeviceArena::allocate(std::size_t bytes) {
  const std::size_t needed = aligned(bytes > 0 ? bytes : 1);
  std::size_t at = 0;  // the first gap that is large enough
  for (const auto& [offset, size] : blocks_) {
    if (offset - at >= needed) break;
    at = offset + aligned(size);
  }
  if (kBytes - at < needed) {
    throw OutOfMemoryError(str("device memory is not enough: ", bytes, " bytes are needed, ",
                               kBytes - in_use_, " of ", kBytes, " are free"));
  }
  blocks_[at] = bytes > 0 ? bytes : 1;
  in_use_ += bytes;
  const Access access(*this);
  std::memset(base_ + at, kPoison, bytes);
  return base_ + at;
}

void DeviceArena::release(void* memory) {
  const auto block =
      blocks_.find(static_cast<std::size_t>(static_cast<std::byte*>(memory) - base_));
  if (block == blocks_.end()) return;
  in_use_ -= block->second;
  blocks_.erase(block);
}

bool DeviceArena::holds(const void* pointer, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(pointer);
  if (first < base_ || first >= base_ + kBytes) return false;
  const auto offset = static_cast<std::size_t>(first - base_);
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return false;
  --next;
  return offset + bytes <= next->first + next->second;
}

DeviceArena::Access::Access(DeviceArena& arena) : arena_(arena) {
  if (arena_.accesses_++ == 0) mprotect(arena_.base_, kBytes, PROT_READ | PROT_WRITE);
}

DeviceArena::Access::~Access() {
  if (--arena_.accesses_ == 0) mprotect(arena_.base_, kBytes, PROT_NONE);
}

}  // namespace specdec::emu
