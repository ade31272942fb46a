#include "backend/cuda/emu/executor.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/emu/fiber.h"
#include "backend/cuda/emu/sanitizers.h"
#include "core/environment.h"
#include "core/error.h"

namespace specdec::emu {
namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kSharedBytes = 48 * 1024;  // what every device has without asking for more
// ThreadSanitizer takes lanes so far apart for one: each pair of threads costs.
constexpr unsigned kWatchedLanes = 3 * kWarp;
// A block that switches lanes this often does not end.
constexpr std::uint64_t kMaxSwitches = std::uint64_t{1} << 27;

bool same_site(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text_of(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return str(slash == nullptr ? site.file : slash + 1, ":", site.line);
}

// Lanes that meet: at a barrier, or in a collective of a warp.
struct Meeting {
  unsigned arrived = 0;
  unsigned turn = 0;  // 0 or 1: a meeting that follows another is told apart from it
  Site site{"", 0};
};

struct Warp {
  Meeting meeting;
  std::uint64_t values[2][kWarp];  // of a turn, by lane
};

struct SharedArray {
  const void* key;
  std::size_t bytes;
  std::unique_ptr<std::byte[]> memory;
};

// Which of up to 1024 places are marked.
class Places {
 public:
  void mark(unsigned first, unsigned count) {
    for (unsigned i = first; i < first + count; ++i) words_[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  void clear(unsigned i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }

  static constexpr unsigned kNone = kMaxThreads;
  // The first mark at `first` or behind it, else the first of all.
  unsigned find_from(unsigned first) const {
    const unsigned found = search(first);
    return found != kNone || first == 0 ? found : search(0);
  }

 private:
  unsigned search(unsigned first) const {
    for (unsigned w = first / 64; w < words_.size(); ++w) {
      const std::uint64_t before = w == first / 64 ? (std::uint64_t{1} << (first % 64)) - 1 : 0;
      if (const std::uint64_t left = words_[w] & ~before) {
        return 64 * w + static_cast<unsigned>(std::countr_zero(left));
      }
    }
    return kNone;
  }
  std::array<std::uint64_t, kMaxThreads / 64 + 1> words_{};  // one more: kNone can be searched from
};

class Executor;

struct Lane {
  Lane(Executor& owner, unsigned number, const Lane* same_thread);

  Executor& executor;
  unsigned thread;  // its number in the block
  bool done = true;
  Site site{"", 0};  // where it waits
  Fiber fiber;
};

// One grid at a time; the fibers are kept from launch to launch. A lane that must wait, or has
// returned, hands over to the next one that can run; the last of a block goes back to the host.
// Places count in the order in which lanes run: up or down the threads of the block.
class Executor {
 public:
  void run(Extent grid, unsigned threads, std::size_t dynamic_bytes,
           const std::function<void()>& kernel) {
    check_launch(grid, threads, dynamic_bytes);
    Fiber host;
    host_ = &host;
    kernel_ = &kernel;
    reverse_ = environment_emulator_reversed();
    threads_ = threads;
    dynamic_bytes_ = dynamic_bytes;
    warps_.assign(threads / kWarp, Warp{});
    while (lanes_.size() < threads) {
      const auto number = static_cast<unsigned>(lanes_.size());
      const Lane* same = number < kWatchedLanes ? nullptr : lanes_[number % kWatchedLanes].get();
      lanes_.push_back(std::make_unique<Lane>(*this, number, same));
    }
    lane_now.block_dim = {threads, 1, 1};
    lane_now.grid_dim = grid;
    published(&launched_);
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const std::uint64_t b = reverse_ ? blocks - 1 - i : i;  // nor may the order of blocks matter
      lane_now.block = {static_cast<unsigned>(b % grid.x),
                        static_cast<unsigned>(b / grid.x % grid.y),
                        static_cast<unsigned>(b / grid.x / grid.y)};
      run_block();
    }
    observed(&finished_);
    const Unwatched unwatched;
    shared_.clear();
  }

  void barrier(Site site) {
    arrive(barrier_, site, threads_, "__syncthreads");
    const unsigned turn = barrier_.turn;
    published(&barrier_syncs_[turn]);
    if (barrier_.arrived == threads_) {
      start_next(barrier_);
      release(0, threads_);
    } else {
      wait(site);
    }
    observed(&barrier_syncs_[turn]);
  }

  std::uint64_t exchange(std::uint64_t value, unsigned source, Site site) {
    const unsigned number = running_->thread / kWarp, lane = running_->thread % kWarp;
    Warp& warp = warps_[number];
    if (source >= kWarp) fail(str("a shuffle from lane ", source, " at ", text_of(site)));
    arrive(warp.meeting, site, kWarp, "a warp collective");
    const unsigned turn = warp.meeting.turn;
    warp.values[turn][lane] = value;
    if (warp.meeting.arrived == kWarp) {
      start_next(warp.meeting);
      release(number * kWarp, kWarp);
    } else {
      wait(site);
    }
    return warp.values[turn][source];
  }

  void warp_barrier(Site site) {
    const unsigned number = running_->thread / kWarp;
    char* sync = &warp_syncs_[number][warps_[number].meeting.turn];
    published(sync);
    exchange(0, 0, site);
    observed(sync);
  }

  void* shared_memory(const void* key, std::size_t bytes) {
    for (const SharedArray& array : shared_) {
      if (array.key == key) return array.memory.get();
    }
    std::size_t total = bytes;
    for (const SharedArray& array : shared_) total += array.bytes;
    if (total > kSharedBytes) {
      fail(str("a block uses ", total, " bytes of shared memory, more than ", kSharedBytes));
    }
    const Unwatched unwatched;
    // A piece of its own from the heap, exactly as large, so that a sanitizer knows its ends.
    shared_.push_back({key, bytes, std::make_unique_for_overwrite<std::byte[]>(bytes)});
    std::memset(shared_.back().memory.get(), kUnwritten, bytes);
    return shared_.back().memory.get();
  }

  void* dynamic_shared_memory() {
    if (dynamic_bytes_ == 0) fail("dynamic shared memory in a launch that asked for none");
    return shared_memory(this, dynamic_bytes_);
  }

  // The life of a fiber: one run of the kernel after another.
  [[noreturn]] void run_lane(Lane& lane) {
    for (;;) {
      observed(&launched_);
      (*kernel_)();
      published(&finished_);
      if (lane.fiber.overflowed()) fail("a lane overflowed its stack: use smaller local arrays");
      lane.done = true;
      --lanes_left_;
      hand_over();
    }
  }

 private:
  static constexpr int kUnwritten = 0xff;  // NaN in every float format

  static void check_launch(Extent grid, unsigned threads, std::size_t dynamic_bytes) {
    const bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu &&
                      grid.y <= 65535 && grid.z <= 65535;
    if (!fits || threads == 0 || threads % kWarp != 0 || threads > kMaxThreads ||
        dynamic_bytes > kSharedBytes) {
      throw DeviceError(str("a launch of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks of ",
                            threads, " threads with ", dynamic_bytes,
                            " bytes of shared memory is not possible"));
    }
  }

  void run_block() {
    renew_shared_memory();
    ++lane_now.run;
    for (unsigned i = 0; i < threads_; ++i) lanes_[i]->done = false;
    lanes_left_ = threads_;
    switches_ = 0;
    ready_ = {};
    ready_.mark(0, threads_);
    place_ = threads_ - 1;  // so that the lane at place 0 is next
    enter_next(*host_);
    if (!failure_.empty()) abandon(std::exchange(failure_, {}));
    if (lanes_left_ > 0) abandon(deadlock_report());
  }

  void renew_shared_memory() {
#if defined(SPECDEC_EMU_TSAN)
    const Unwatched unwatched;
    shared_.clear();  // to ThreadSanitizer another block's memory is another piece
#else
    for (SharedArray& array : shared_) std::memset(array.memory.get(), kUnwritten, array.bytes);
#endif
  }

  Lane& lane_at(unsigned place) { return *lanes_[reverse_ ? threads_ - 1 - place : place]; }

  // From what runs now to the next lane that can, or to the host.
  void enter_next(Fiber& from) {
    const unsigned next = ready_.find_from(place_ + 1);
    if (next == Places::kNone) {
      if (&from != host_) host_->enter_from(from);
      return;
    }
    ready_.clear(next);
    place_ = next;
    running_ = &lane_at(next);
    lane_now.thread.x = running_->thread;
    if (&running_->fiber != &from) running_->fiber.enter_from(from);
  }
  void hand_over() { enter_next(running_->fiber); }

  // Ends the launch. Fibers that stand in the middle of a kernel are thrown away.
  [[noreturn]] void abandon(const std::string& reason) {
    const std::string where =
        str("emulated device, block (", lane_now.block.x, ", ", lane_now.block.y, ", ",
            lane_now.block.z, "), thread ", lane_now.thread.x, ": ");
    lanes_.clear();
    shared_.clear();
    barrier_ = {};
    throw DeviceError(where + reason);
  }

  // On a lane: never returns to it.
  [[noreturn]] void fail(std::string reason) {
    failure_ = std::move(reason);
    for (;;) host_->enter_from(running_->fiber);
  }

  void arrive(Meeting& meeting, Site site, unsigned expected, const char* what) {
    if (meeting.arrived == 0) {
      meeting.site = site;
    } else if (!same_site(meeting.site, site)) {
      fail(str(what, " at ", text_of(site), " while other lanes are at ", text_of(meeting.site)));
    }
    if (meeting.arrived >= expected) fail(str(what, " of too many lanes"));
    ++meeting.arrived;
  }

  static void start_next(Meeting& meeting) {
    meeting.arrived = 0;
    meeting.turn ^= 1;
  }

  void wait(Site site) {
    running_->site = site;
    if (++switches_ > kMaxSwitches) fail(str("the block does not end; it is at ", text_of(site)));
    hand_over();
  }

  // All lanes of `count` threads wait, but for the one that runs.
  void release(unsigned first, unsigned count) {
    ready_.mark(reverse_ ? threads_ - first - count : first, count);
    ready_.clear(place_);
  }

  std::string deadlock_report() const {
    std::string places;
    for (unsigned i = 0; i < threads_; ++i) {
      if (lanes_[i]->done) continue;
      const std::string place = text_of(lanes_[i]->site);
      if (places.find(place) == std::string::npos) places += (places.empty() ? "" : ", ") + place;
    }
    return str("lanes wait for ever at ", places, "; ", threads_ - lanes_left_, " of ", threads_,
               " have returned");
  }

  const std::function<void()>* kernel_ = nullptr;
  bool reverse_ = false;
  unsigned threads_ = 0;
  std::size_t dynamic_bytes_ = 0;
  Fiber* host_ = nullptr;
  Lane* running_ = nullptr;
  unsigned place_ = 0;  // of the running lane
  Places ready_;        // by place
  unsigned lanes_left_ = 0;
  std::uint64_t switches_ = 0;  // of the block
  std::string failure_;         // set by a lane, thrown by the host
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Warp> warps_;  // [threads / 32]
  Meeting barrier_;
  std::vector<SharedArray> shared_;
  // Addresses that stand for an order between lanes (sanitizers.h), by turn.
  char launched_ = 0, finished_ = 0, barrier_syncs_[2] = {};
  char warp_syncs_[kMaxThreads / kWarp][2] = {};
};

Lane::Lane(Executor& owner, unsigned number, const Lane* same_thread)
    : executor(owner),
      thread(number),
      fiber(
          [](void* lane) {
            static_cast<Lane*>(lane)->executor.run_lane(*static_cast<Lane*>(lane));
          },
          this, same_thread == nullptr ? nullptr : &same_thread->fiber) {}

Executor& executor() {
  static Executor instance;
  return instance;
}

}  // namespace

void run_grid(Extent grid, unsigned threads, std::size_t dynamic_shared_bytes,
              const std::function<void()>& kernel) {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  executor().run(grid, threads, dynamic_shared_bytes, kernel);
}

LaneIndex lane_now;

void block_barrier(Site site) { executor().barrier(site); }
std::uint64_t warp_exchange(std::uint64_t value, unsigned source, Site site) {
  return executor().exchange(value, source, site);
}
void* shared_memory(const void* key, std::size_t bytes) {
  return executor().shared_memory(key, bytes);
}
void warp_barrier(Site site) { executor().warp_barrier(site); }
void* dynamic_shared_memory() { return executor().dynamic_shared_memory(); }

}  // namespace specdec::emu
