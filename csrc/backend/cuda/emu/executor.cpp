#include "backend/cuda/emu/executor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/emu/fiber.h"
#include "core/environment.h"
#include "core/error.h"

namespace specdec::emu {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kSharedBytes = 48 * 1024;  // what every device has without asking for more

bool same_site(Site a, Site b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

std::string text_of(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return str(slash == nullptr ? site.file : slash + 1, ":", site.line);
}

// Lanes that meet: at a barrier, or in a collective of a warp.
struct Meeting {
  unsigned arrived = 0;
  Site site{"", 0};
};

struct Warp {
  Meeting meeting;
  std::uint64_t given[kWarp];  // by the lanes that have arrived
  std::uint64_t taken[kWarp];  // of the last complete exchange
};

struct SharedArray {
  const void* key;
  std::vector<std::uint64_t> memory;
};

class Executor;

enum class LaneState { kReady, kWaiting, kDone };

struct Lane {
  Lane(Executor& owner, unsigned number);

  Executor& executor;
  unsigned number;
  LaneState state = LaneState::kDone;
  Site site{"", 0};  // where it waits
  Fiber fiber;
};

// One grid at a time; the fibers are kept from launch to launch.
class Executor {
 public:
  void run(Extent grid, unsigned threads, std::size_t dynamic_bytes,
           const std::function<void()>& kernel) {
    check_launch(grid, threads, dynamic_bytes);
    kernel_ = &kernel;
    reverse_ = environment_emulator_reversed();
    threads_ = threads;
    dynamic_bytes_ = dynamic_bytes;
    warps_.assign(threads / kWarp, Warp{});
    while (lanes_.size() < threads) {
      lanes_.push_back(std::make_unique<Lane>(*this, static_cast<unsigned>(lanes_.size())));
    }
    index_.block_dim = {threads, 1, 1};
    index_.grid_dim = grid;
    const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
    for (std::uint64_t i = 0; i < blocks; ++i) {
      const std::uint64_t b = reverse_ ? blocks - 1 - i : i;  // nor may the order of blocks matter
      index_.block = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                      static_cast<unsigned>(b / grid.x / grid.y)};
      run_block();
    }
    shared_.clear();
  }

  const LaneIndex& index() const { return index_; }

  void barrier(Site site) {
    arrive(barrier_, site, threads_, "__syncthreads");
    if (barrier_.arrived == threads_) {
      barrier_.arrived = 0;
      release(0, threads_);
    } else {
      wait(site);
    }
  }

  std::uint64_t exchange(std::uint64_t value, unsigned source, Site site) {
    const unsigned warp_number = running_->number / kWarp, lane = running_->number % kWarp;
    Warp& warp = warps_[warp_number];
    if (source >= kWarp) fail(str("a shuffle from lane ", source, " at ", text_of(site)));
    arrive(warp.meeting, site, kWarp, "a warp collective");
    warp.given[lane] = value;
    if (warp.meeting.arrived == kWarp) {
      warp.meeting.arrived = 0;
      std::copy_n(warp.given, kWarp, warp.taken);
      release(warp_number * kWarp, kWarp);
    } else {
      wait(site);
    }
    return warp.taken[source];
  }

  void* shared_memory(const void* key, std::size_t bytes) {
    for (SharedArray& array : shared_) {
      if (array.key == key) return array.memory.data();
    }
    std::size_t total = bytes;
    for (const SharedArray& array : shared_) total += array.memory.size() * sizeof(std::uint64_t);
    if (total > kSharedBytes) {
      fail(str("a block uses ", total, " bytes of shared memory, more than ", kSharedBytes));
    }
    shared_.push_back({key, std::vector<std::uint64_t>((bytes + 7) / 8, ~std::uint64_t{0})});
    return shared_.back().memory.data();
  }

  void* dynamic_shared_memory() {
    if (dynamic_bytes_ == 0) fail("dynamic shared memory in a launch that asked for none");
    return shared_memory(this, dynamic_bytes_);
  }

  // The life of a fiber: one run of the kernel per resume from kReady.
  [[noreturn]] void run_lane(Lane& lane) {
    for (;;) {
      (*kernel_)();
      lane.state = LaneState::kDone;
      lane.fiber.suspend();
    }
  }

 private:
  static void check_launch(Extent grid, unsigned threads, std::size_t dynamic_bytes) {
    const bool fits = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu &&
                      grid.y <= 65535 && grid.z <= 65535;
    if (!fits || threads == 0 || threads % kWarp != 0 || threads > 1024 ||
        dynamic_bytes > kSharedBytes) {
      throw DeviceError(str("a launch of ", grid.x, " x ", grid.y, " x ", grid.z, " blocks of ",
                            threads, " threads with ", dynamic_bytes,
                            " bytes of shared memory is not possible"));
    }
  }

  void run_block() {
    for (SharedArray& array : shared_) {
      std::fill(array.memory.begin(), array.memory.end(), ~std::uint64_t{0});
    }
    for (unsigned i = 0; i < threads_; ++i) lanes_[i]->state = LaneState::kReady;
    for (bool all_done = false; !all_done;) {
      bool moved = false;
      all_done = true;
      for (unsigned i = 0; i < threads_; ++i) {
        Lane& lane = *lanes_[reverse_ ? threads_ - 1 - i : i];
        if (lane.state == LaneState::kReady) {
          moved = true;
          resume(lane);
        }
        all_done = all_done && lane.state == LaneState::kDone;
      }
      if (!moved && !all_done) abandon(deadlock_report());
    }
  }

  void resume(Lane& lane) {
    running_ = &lane;
    index_.thread = {lane.number, 0, 0};
    lane.fiber.resume();
    running_ = nullptr;
    if (lane.fiber.overflowed()) failure_ = "a lane overflowed its stack: use smaller local arrays";
    if (!failure_.empty()) abandon(std::exchange(failure_, {}));
  }

  // Ends the launch. Fibers that stand in the middle of a kernel are thrown away.
  [[noreturn]] void abandon(const std::string& reason) {
    const std::string where = str("emulated device, block (", index_.block.x, ", ", index_.block.y,
                                  ", ", index_.block.z, "), thread ", index_.thread.x, ": ");
    lanes_.clear();
    shared_.clear();
    barrier_ = {};
    throw DeviceError(where + reason);
  }

  // On a lane: never returns to it.
  [[noreturn]] void fail(std::string reason) {
    failure_ = std::move(reason);
    for (;;) running_->fiber.suspend();
  }

  void arrive(Meeting& meeting, Site site, unsigned expected, const char* what) {
    if (meeting.arrived == 0) {
      meeting.site = site;
    } else if (!same_site(meeting.site, site)) {
      fail(str(what, " at ", text_of(site), " while other lanes are at ", text_of(meeting.site)));
    }
    SPECDEC_CHECK(meeting.arrived < expected, what);
    ++meeting.arrived;
  }

  void wait(Site site) {
    running_->state = LaneState::kWaiting;
    running_->site = site;
    running_->fiber.suspend();
  }

  void release(unsigned first, unsigned count) {
    for (unsigned i = first; i < first + count; ++i) {
      if (lanes_[i]->state == LaneState::kWaiting) lanes_[i]->state = LaneState::kReady;
    }
  }

  std::string deadlock_report() const {
    unsigned done = 0;
    std::string places;
    for (unsigned i = 0; i < threads_; ++i) {
      if (lanes_[i]->state == LaneState::kDone) {
        ++done;
        continue;
      }
      const std::string place = text_of(lanes_[i]->site);
      if (places.find(place) == std::string::npos) places += (places.empty() ? "" : ", ") + place;
    }
    return str("lanes wait for ever at ", places, "; ", done, " of ", threads_, " have returned");
  }

  const std::function<void()>* kernel_ = nullptr;
  bool reverse_ = false;
  unsigned threads_ = 0;
  std::size_t dynamic_bytes_ = 0;
  LaneIndex index_;
  Lane* running_ = nullptr;
  std::string failure_;  // set by a lane, thrown by the scheduler
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Warp> warps_;  // [threads / 32]
  Meeting barrier_;
  std::vector<SharedArray> shared_;
};

Lane::Lane(Executor& owner, unsigned n)
    : executor(owner),
      number(n),
      fiber(
          [](void* lane) {
            static_cast<Lane*>(lane)->executor.run_lane(*static_cast<Lane*>(lane));
          },
          this) {}

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

const LaneIndex& lane_index() { return executor().index(); }
void block_barrier(Site site) { executor().barrier(site); }
std::uint64_t warp_exchange(std::uint64_t value, unsigned source, Site site) {
  return executor().exchange(value, source, site);
}
void* shared_memory(const void* key, std::size_t bytes) {
  return executor().shared_memory(key, bytes);
}
void* dynamic_shared_memory() { return executor().dynamic_shared_memory(); }

}  // namespace specdec::emu
