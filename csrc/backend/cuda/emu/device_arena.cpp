#include "backend/cuda/emu/device_arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "backend/cuda/emu/sanitizers.h"
#include "core/error.h"

namespace specdec::emu {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kPoison = 0xff;  // NaN in every float format

// Bytes that an allocation takes, at least kAlignment more than asked for: beyond the end lies
// nobody's memory.
std::size_t with_margin(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
}

}  // namespace

DeviceArena::DeviceArena() {
  mapped_ = mmap(nullptr, kBytes + kHugePage, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::bad_alloc();
  const auto first = reinterpret_cast<std::uintptr_t>(mapped_);
  base_ = reinterpret_cast<std::byte*>((first + kHugePage - 1) / kHugePage * kHugePage);
#if defined(MADV_HUGEPAGE)
  madvise(base_, kBytes, MADV_HUGEPAGE);  // few entries to change when access is given and taken
#endif
}

DeviceArena::~DeviceArena() { munmap(mapped_, kBytes + kHugePage); }

void* DeviceArena::allocate(std::size_t bytes) {
  const std::size_t needed = with_margin(bytes);
  std::size_t at = 0;  // the first gap that is large enough
  for (const auto& [offset, size] : blocks_) {
    if (offset - at >= needed) break;
    at = offset + with_margin(size);
  }
  if (kBytes - at < needed) {
    throw OutOfMemoryError(str("device memory is not enough: ", bytes, " bytes are needed, ",
                               kBytes - in_use_, " of ", kBytes, " are free"));
  }
  blocks_[at] = bytes;
  in_use_ += bytes;
  forbid(base_ + at, needed);
  permit(base_ + at, bytes);
  const Access access(*this);
  std::memset(base_ + at, kPoison, bytes);
  return base_ + at;
}

void DeviceArena::release(void* memory) {
  const auto block =
      blocks_.find(static_cast<std::size_t>(static_cast<std::byte*>(memory) - base_));
  if (block == blocks_.end()) return;
  in_use_ -= block->second;
  forbid(memory, block->second);
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
