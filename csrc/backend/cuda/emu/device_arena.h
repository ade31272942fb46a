// The emulated device's memory: one range of addresses that nobody can touch but kernels and copies
// while they run. A host that follows a device pointer ends by a segmentation fault, as it would
// with a real device.
#pragma once

#include <cstddef>
#include <map>

namespace specdec::emu {

class DeviceArena {
 public:
  static constexpr std::size_t kBytes = std::size_t{2} << 30;  // of addresses; pages when touched

  DeviceArena();
  ~DeviceArena();
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // 256-byte aligned, filled with NaN bits. Throws OutOfMemoryError.
  void* allocate(std::size_t bytes);
  void release(void* memory);
  // Does [pointer, pointer + bytes) lie in one allocation?
  bool holds(const void* pointer, std::size_t bytes) const;
  std::size_t bytes_in_use() const { return in_use_; }

  // While one lives, the memory can be touched.
  class Access {
   public:
    explicit Access(DeviceArena& arena);
    ~Access();
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    DeviceArena& arena_;
  };

 private:
  void* mapped_ = nullptr;
  std::byte* base_ = nullptr;                  // in it, at the start of a huge page
  std::map<std::size_t, std::size_t> blocks_;  // offset -> bytes
  std::size_t in_use_ = 0;
  int accesses_ = 0;
};

}  // namespace specdec::emu
