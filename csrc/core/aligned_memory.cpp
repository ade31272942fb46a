#include "core/aligned_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::size_t kVectorBytes = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Of an arena. What is never written to costs address space only.
constexpr std::size_t kSlabBytes = std::size_t{32} << 20;

// A failure costs speed, nothing else.
void ask_for_huge_pages([[maybe_unused]] std::uint8_t* p, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  ::madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
}

}  // namespace

AlignedBytes allocate_aligned(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  const std::align_val_t alignment{huge ? kHugePage : kVectorBytes};
  void* p = ::operator new(bytes > 0 ? bytes : 1, alignment, std::nothrow);
  if (p == nullptr) {
    throw OutOfMemoryError(str("cannot allocate ", bytes,
                               " bytes; use a smaller context or model, or free some memory"));
  }
  auto* first = static_cast<std::uint8_t*>(p);
  if (huge) ask_for_huge_pages(first, bytes);
  return AlignedBytes(first, AlignedDelete{alignment});
}

std::shared_ptr<std::uint8_t[]> Arena::allocate(std::size_t bytes) {
  const std::size_t size = (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  if (size > kSlabBytes / 4) return allocate_aligned(size);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size_ - used_ < size) {
    slab_ = allocate_aligned(kSlabBytes);
    size_ = kSlabBytes;
    used_ = 0;
  }
  std::uint8_t* piece = slab_.get() + used_;
  used_ += size;
  return {slab_, piece};
}

}  // namespace specdec
