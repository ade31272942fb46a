#include "backend/cuda/device_instructions.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

namespace specdec::emu {
namespace {

constexpr int kLanes = 32;
constexpr int kMaxThreads = 1024;

// By thread of the block that runs; the executor runs one block at a time.
struct Given {
  std::array<const Fragments*, kMaxThreads> fragments;
};
Given& given() {
  static Given instance;
  return instance;
}

// Four bytes of a register as k, k + 1, ...
void spread(unsigned word, std::int8_t* to) { std::memcpy(to, &word, sizeof(word)); }

// The products of one warp.
void multiply(const Fragments* const* lanes) {
  std::int8_t a[16][kLanes], b[8][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const Fragments& lane = *lanes[l];
    const int g = l / 4, k = 4 * (l % 4);
    spread(lane.a[0], &a[g][k]);
    spread(lane.a[1], &a[g + 8][k]);
    spread(lane.a[2], &a[g][16 + k]);
    spread(lane.a[3], &a[g + 8][16 + k]);
    spread(lane.b[0], &b[g][k]);
    spread(lane.b[1], &b[g][16 + k]);
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int i = 0; i < 4; ++i) {
      const std::int8_t* row = a[l / 4 + 8 * (i / 2)];
      const std::int8_t* column = b[2 * (l % 4) + i % 2];
      int sum = lanes[l]->start;
      for (int k = 0; k < kLanes; ++k) sum += row[k] * column[k];
      lanes[l]->d[i] = sum;
    }
  }
}

struct Copy {
  void* to;
  const void* from;
};
struct LaneCopies {
  std::uint64_t run = 0;  // the block that they are of
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;  // oldest first
};
LaneCopies& copies_of_lane() {
  static std::array<LaneCopies, kMaxThreads> lanes;
  LaneCopies& copies = lanes[threadIdx.x];
  if (copies.run != lane_now.run) copies = {lane_now.run, {}, {}};
  return copies;
}

constexpr std::size_t kCopyBytes = 16;

}  // namespace

void multiply_fragments(const Fragments& mine, std::source_location at) {
  const unsigned thread = threadIdx.x, first = thread / kLanes * kLanes;
  given().fragments[thread] = &mine;
  __syncwarp(at);
  if (thread == first) multiply(&given().fragments[first]);
  __syncwarp(at);
}

void copy_later(void* shared, const void* global) {
  std::memset(shared, 0xff, kCopyBytes);
  copies_of_lane().open.push_back({shared, global});
}

void commit_copies() {
  LaneCopies& copies = copies_of_lane();
  copies.groups.push_back(std::move(copies.open));
  copies.open.clear();
}

void finish_copies(int pending) {
  LaneCopies& copies = copies_of_lane();
  while (copies.groups.size() > static_cast<std::size_t>(pending)) {
    for (const Copy& copy : copies.groups.front()) std::memcpy(copy.to, copy.from, kCopyBytes);
    copies.groups.pop_front();
  }
}

}  // namespace specdec::emu
