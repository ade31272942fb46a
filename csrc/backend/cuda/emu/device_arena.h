// The emulated devices' memory: one range of addresses that nobody can touch but kernels and copies
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

  // 256-byte aligned, filled with NaN bits. Null where `device` would have more than `limit` bytes
  // in use.
  void* allocate(int device, std::size_t bytes, std::size_t limit);
  void release(void* memory);
  // The device in whose allocation [pointer, pointer + bytes) lies; -1: in none.
  int owner(const void* pointer, std::size_t bytes) const;
  std::size_t bytes_in_use(int device) const;

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
  struct Block {
    std::size_t bytes;
    int device;
  };

  void* mapped_ = nullptr;
  std::byte* base_ = nullptr;            // in it, at the start of a huge page
  std::map<std::size_t, Block> blocks_;  // by offset
  int accesses_ = 0;
};

}  // namespace specdec::emu
