// Runs a CUDA grid on the CPU, for tests: one fiber per CUDA thread, one thread block after the
// other, every collective checked. Deterministic: lanes run in ascending order or, to show missing
// barriers, in descending order (SPECDEC_EMU_ORDER=reverse).
//
// What it refuses, with the kernel's file and line: a warp collective or a barrier that not all
// lanes reach at the same place, lanes that wait for ever, more shared memory than a block has.
// Shared memory is filled with NaN bits before each block, so a read before the write shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace specdec::emu {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

// Where in a kernel a collective stands.
struct Site {
  const char* file;
  int line;
};

// Runs `kernel` once per thread of every block. threads: of a block, a multiple of 32, at most
// 1024. Throws DeviceError with what the kernel did wrong.
void run_grid(Extent grid, unsigned threads, std::size_t dynamic_shared_bytes,
              const std::function<void()>& kernel);

// --- What device code calls, on a lane ---

struct LaneIndex {
  Extent thread, block, block_dim, grid_dim;  // thread and block: indices
  std::uint64_t run = 0;                      // counts the blocks of all launches
};
extern LaneIndex lane_now;  // of the lane that is running
inline const LaneIndex& lane_index() { return lane_now; }

void block_barrier(Site site);
// Orders what the lanes of a warp do to memory; the exchange below does not.
void warp_barrier(Site site);
// Every lane of the warp gives a value and gets that of lane `source` (0..31).
std::uint64_t warp_exchange(std::uint64_t value, unsigned source, Site site);
// The block's memory for one shared array; `key` tells the arrays of a kernel apart.
void* shared_memory(const void* key, std::size_t bytes);
void* dynamic_shared_memory();

}  // namespace specdec::emu
