// The instructions of backend/cuda/device_instructions.h on the emulated device.
#pragma once

#include <source_location>

namespace specdec::emu {

// What a lane gives to a product of matrices. Where k is 16, a[2], a[3] and b[1] are zero.
struct Fragments {
  unsigned a[4], b[2];
  int start;
  int* d;  // [4]
};
// d = start + a b by all lanes of a warp, in the fragment layout of
// backend/cuda/device_instructions.h.
void multiply_fragments(const Fragments& mine, std::source_location at);

// A copy of 16 bytes that happens when the lane waits for it; until then the destination holds NaN.
void copy_later(void* shared, const void* global);
void commit_copies();
// Does the lane's groups but for the newest `pending`.
void finish_copies(int pending);

}  // namespace specdec::emu
