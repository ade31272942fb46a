#include "backend/cuda/emu/device_arena.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#include "backend/cuda/emu/sanitizers.h"

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

void* DeviceArena::allocate(int device, std::size_t bytes, std::size_t limit) {
  const std::size_t needed = with_margin(bytes);
  std::size_t at = 0;  // the first gap that is large enough
  for (const auto& [offset, block] : blocks_) {
    if (offset - at >= needed) break;
    at = offset + with_margin(block.bytes);
  }
  const std::size_t used = bytes_in_use(device);
  if (kBytes - at < needed || used > limit || bytes > limit - used) return nullptr;
  blocks_[at] = {bytes, device};
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
  forbid(memory, block->second.bytes);
  blocks_.erase(block);
}

int DeviceArena::owner(const void* pointer, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(pointer);
  if (first < base_ || first >= base_ + kBytes) return -1;
  const auto offset = static_cast<std::size_t>(first - base_);
  auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return -1;
  --next;
  return offset + bytes <= next->first + next->second.bytes ? next->second.device : -1;
}

std::size_t DeviceArena::bytes_in_use(int device) const {
  std::size_t sum = 0;
  for (const auto& [offset, block] : blocks_) sum += block.device == device ? block.bytes : 0;
  return sum;
}

DeviceArena::Access::Access(DeviceArena& arena) : arena_(arena) {
  if (arena_.accesses_++ == 0) mprotect(arena_.base_, kBytes, PROT_READ | PROT_WRITE);
}

DeviceArena::Access::~Access() {
  if (--arena_.accesses_ == 0) mprotect(arena_.base_, kBytes, PROT_NONE);
}

}  // namespace specdec::emu
