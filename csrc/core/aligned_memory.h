// Memory for vectors and weights. Large pieces ask the system for huge pages: a pass reads all
// weights once, and with pages of 4 KiB a good part of that time goes to looking up addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>

namespace specdec {

struct AlignedDelete {
  std::align_val_t alignment{64};
  void operator()(std::uint8_t* p) const { ::operator delete(p, alignment); }
};
using AlignedBytes = std::unique_ptr<std::uint8_t[], AlignedDelete>;

// Not initialised, at least 64-byte aligned. Throws OutOfMemoryError.
AlignedBytes allocate_aligned(std::size_t bytes);

// Packs many pieces that live about equally long into few large ones, so that small weights lie in
// huge pages too. A large piece goes back to the system when the last piece in it is gone. May be
// used by several threads.
class Arena {
 public:
  // Not initialised, 64-byte aligned. Throws OutOfMemoryError.
  std::shared_ptr<std::uint8_t[]> allocate(std::size_t bytes);

 private:
  std::mutex mutex_;
  std::shared_ptr<std::uint8_t[]> slab_;
  std::size_t used_ = 0, size_ = 0;  // of slab_
};

}  // namespace specdec
