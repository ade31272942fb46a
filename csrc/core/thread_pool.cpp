#include "core/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "core/error.h"

#if defined(__linux__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>

#include <fstream>
#include <set>
#include <string>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace specdec {

namespace {

// Longer than the serial stretch between two regions of a pass, short against the time between
// passes.
constexpr auto kSpinTime = std::chrono::microseconds(100);
// On a busy machine another thread may need this core to let us go on: give it away after this
// long.
constexpr auto kPoliteAfter = std::chrono::microseconds(30);
constexpr int kPausesPerClockRead = 32;
// A thread's range counts in 16 bits.
constexpr std::uint32_t kMostUnits = 65535;

inline void cpu_pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// Spins until `done()`; gives up after kSpinTime if `may_give_up`. Returns whether it is done.
template <typename Done>
bool spin_until(const Done& done, bool may_give_up) {
  for (int i = 0; i < kPausesPerClockRead; ++i) {
    if (done()) return true;
    cpu_pause();
  }
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (done()) return true;
      cpu_pause();
    }
    const auto waited = std::chrono::steady_clock::now() - start;
    if (may_give_up && waited > kSpinTime) return false;
    if (waited > kPoliteAfter) std::this_thread::yield();
  }
}

// The slot of the task this thread is running, or -1: a nested region must not wait for itself.
thread_local int current_slot = -1;

}  // namespace

#if defined(__linux__)

int physical_core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  // Hardware threads of one core list the same siblings.
  std::set<std::string> cores;
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string siblings;
    std::ifstream file(topology + "thread_siblings_list");
    if (!(file && std::getline(file, siblings))) siblings = "cpu" + std::to_string(cpu);
    cores.insert(siblings);
  }
  return std::max(1, static_cast<int>(cores.size()));
}

#elif defined(__APPLE__)

int physical_core_count() {
  int count = 0;
  std::size_t size = sizeof(count);
  // The performance cores: the others would be waited for in every region.
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) {
    return count;
  }
  size = sizeof(count);
  if (sysctlbyname("hw.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return count;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#elif defined(_WIN32)

int physical_core_count() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> info(bytes / sizeof(info[0]));
  DWORD_PTR allowed = 0, system = 0;
  if (info.empty() || !GetLogicalProcessorInformation(info.data(), &bytes) ||
      !GetProcessAffinityMask(GetCurrentProcess(), &allowed, &system)) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  int count = 0;
  for (const auto& entry : info) {
    if (entry.Relationship == RelationProcessorCore && (entry.ProcessorMask & allowed)) ++count;
  }
  return std::max(1, count);
}

#else

int physical_core_count() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#endif

#if defined(__linux__) || defined(__APPLE__)

std::uint32_t fork_count() {
  static std::atomic<std::uint32_t> forks{0};
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  return forks.load(std::memory_order_relaxed);
}

#else

std::uint32_t fork_count() { return 0; }

#endif

ThreadPool::ThreadPool(int threads) : threads_(threads > 0 ? threads : physical_core_count()) {
  ranges_ = std::make_unique<Range[]>(static_cast<std::size_t>(threads_));
  workers_->threads.reserve(static_cast<std::size_t>(threads_ - 1));
  for (int slot = 1; slot < threads_; ++slot) {
    workers_->threads.emplace_back([this, slot] { worker_main(slot); });
  }
}

ThreadPool::~ThreadPool() {
  if (forked()) {
    // Left alone on purpose: to join threads that this process does not have would never end.
    static_cast<void>(workers_.release());
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(workers_->sleep_mutex);
    stop_.store(true);
  }
  workers_->wake.notify_all();
  for (std::thread& worker : workers_->threads) worker.join();
}

void ThreadPool::run(std::size_t tasks, Call call, const void* fn) {
  if (tasks == 0) return;
  SPECDEC_CHECK(tasks < std::numeric_limits<std::uint32_t>::max() / 2, tasks, " tasks");
  if (current_slot >= 0) {
    for (std::size_t task = 0; task < tasks; ++task) call(fn, task, current_slot);
    return;
  }
  const std::lock_guard<std::mutex> lock(run_mutex_);
  if (threads_ == 1 || tasks == 1 || forked()) {
    struct Reset {
      ~Reset() { current_slot = -1; }
    } reset;
    current_slot = 0;
    for (std::size_t task = 0; task < tasks; ++task) call(fn, task, 0);
    return;
  }
  run_region(static_cast<std::uint32_t>(tasks), call, fn);
}

void ThreadPool::run_region(std::uint32_t tasks, Call call, const void* fn) {
  const std::uint32_t generation = generation_.load() + 1;
  const std::uint32_t per_unit = (tasks + kMostUnits - 1) / kMostUnits;
  call_.store(call, std::memory_order_relaxed);
  fn_.store(fn, std::memory_order_relaxed);
  tasks_.store(tasks, std::memory_order_relaxed);
  unit_tasks_.store(per_unit, std::memory_order_relaxed);
  unfinished_.store(tasks, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  set_ranges(generation, (tasks + per_unit - 1) / per_unit);
  generation_.store(generation);  // seq_cst, pairs with sleepers_
  if (sleepers_.load() > 0) {
    {
      const std::lock_guard<std::mutex> lock(workers_->sleep_mutex);
    }
    workers_->wake.notify_all();
  }
  work_on(generation, 0);
  spin_until([this] { return unfinished_.load(std::memory_order_acquire) == 0; }, false);
  if (failed_.load(std::memory_order_relaxed)) {
    std::exception_ptr error;
    {
      const std::lock_guard<std::mutex> lock(error_mutex_);
      error = std::exchange(error_, nullptr);
    }
    std::rethrow_exception(error);
  }
}

// Deals the units out evenly. Released, so that a claim also sees the fields stored before.
void ThreadPool::set_ranges(std::uint32_t generation, std::uint32_t units) {
  const auto threads = static_cast<std::uint64_t>(threads_);
  for (std::uint64_t slot = 0; slot < threads; ++slot) {
    const std::uint64_t begin = units * slot / threads, end = units * (slot + 1) / threads;
    ranges_[slot].value.store(static_cast<std::uint64_t>(generation) << 32 | begin << 16 | end,
                              std::memory_order_release);
  }
}

// Runs the thread's own units of `generation`, then those that others have not come to.
void ThreadPool::work_on(std::uint32_t generation, int slot) {
  for (int i = 0; i < threads_; ++i) {
    while (run_unit_of((slot + i) % threads_, generation, slot)) {
    }
  }
}

// Claims a unit of `owner`'s range (the first if it is our own, else the last) and runs it; false
// if none is left.
bool ThreadPool::run_unit_of(int owner, std::uint32_t generation, int slot) {
  std::atomic<std::uint64_t>& range = ranges_[static_cast<std::size_t>(owner)].value;
  std::uint64_t value = range.load(std::memory_order_acquire);
  while (static_cast<std::uint32_t>(value >> 32) == generation) {
    const std::uint64_t begin = value >> 16 & 0xffff, end = value & 0xffff;
    if (begin == end) return false;
    const Call call = call_.load(std::memory_order_relaxed);
    const void* fn = fn_.load(std::memory_order_relaxed);
    const std::size_t tasks = tasks_.load(std::memory_order_relaxed);
    const std::size_t per_unit = unit_tasks_.load(std::memory_order_relaxed);
    const bool own = owner == slot;
    if (!range.compare_exchange_weak(value, own ? value + (1u << 16) : value - 1,
                                     std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    const std::size_t first = (own ? begin : end - 1) * per_unit;
    run_tasks(call, fn, first, std::min(first + per_unit, tasks), slot);
    return true;
  }
  return false;
}

void ThreadPool::run_tasks(Call call, const void* fn, std::size_t begin, std::size_t end,
                           int slot) {
  for (std::size_t task = begin; task < end && !failed_.load(std::memory_order_relaxed); ++task) {
    current_slot = slot;
    try {
      call(fn, task, slot);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(error_mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_relaxed);
    }
    current_slot = -1;
  }
  unfinished_.fetch_sub(static_cast<std::uint32_t>(end - begin), std::memory_order_acq_rel);
}

void ThreadPool::worker_main(int slot) {
  std::uint32_t seen = 0;
  while (wait_for_region(seen)) {
    seen = generation_.load(std::memory_order_acquire);
    work_on(seen, slot);
  }
}

// Waits until the generation differs from `seen`; false when the pool is being destroyed.
bool ThreadPool::wait_for_region(std::uint32_t seen) {
  const auto ready = [this, seen] { return generation_.load() != seen || stop_.load(); };
  if (!spin_until(ready, true)) {
    std::unique_lock<std::mutex> lock(workers_->sleep_mutex);
    sleepers_.fetch_add(1);  // seq_cst: either we see the new generation or the caller sees us
    workers_->wake.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }
  return !stop_.load();
}

}  // namespace specdec
