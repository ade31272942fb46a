// A small pool for many short parallel regions (a token is some 200 of them). Workers spin briefly
// after a region, because the next one usually follows within microseconds, then sleep. Each thread
// has a range of consecutive tasks of its own, which it claims in order: what a task asks of memory
// ahead of its end is then what the thread's next task begins with. A thread that is through takes
// tasks from the end of another's range, and a region ends when its tasks are done, not when every
// worker has woken up: a worker that the system has put aside on a busy machine costs one task, not
// a half.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace specdec {

// How many forks lie between this process and the one that first asked: it differs in a forked
// child.
std::uint32_t fork_count();

// Physical cores that this process may run on (its affinity mask counts); at least 1.
int physical_core_count();

class ThreadPool {
 public:
  // `threads` counts the calling thread: a pool of 1 has no workers. threads <= 0:
  // physical_core_count().
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(task, slot) for every task in [0, tasks), in any order, on any thread; returns when
  // all are done. slot in [0, threads()) is the thread's number: no two running tasks share one.
  // The first exception is rethrown here (tasks not yet started are then skipped). May be called by
  // several threads: they take turns. A call from inside a task runs serially.
  template <typename Fn>
  void parallel_for(std::size_t tasks, const Fn& fn) {
    run(tasks, &call<Fn>, &fn);
  }

 private:
  using Call = void (*)(const void* fn, std::size_t task, int slot);

  template <typename Fn>
  static void call(const void* fn, std::size_t task, int slot) {
    (*static_cast<const Fn*>(fn))(task, slot);
  }

  void run(std::size_t tasks, Call call, const void* fn);
  void run_region(std::uint32_t tasks, Call call, const void* fn);
  void set_ranges(std::uint32_t generation, std::uint32_t units);
  void work_on(std::uint32_t generation, int slot);
  bool run_unit_of(int owner, std::uint32_t generation, int slot);
  void run_tasks(Call call, const void* fn, std::size_t begin, std::size_t end, int slot);
  void worker_main(int slot);
  bool wait_for_region(std::uint32_t seen);

  // The unclaimed units of one thread, [begin, end), as generation << 32 | begin << 16 | end. A
  // unit is `unit_tasks_` tasks: one, but for regions of more tasks than 16 bits can count.
  struct alignas(64) Range {
    std::atomic<std::uint64_t> value{0};
  };

  // The region in progress. Its fields change only between regions, while every range is empty. So
  // a successful claim, which compares the generation too, proves that the values read before it
  // belong to its region. `generation_` is stored last: workers wait for it.
  alignas(64) std::atomic<std::uint32_t> generation_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> fn_{nullptr};
  std::atomic<std::uint32_t> tasks_{0};
  std::atomic<std::uint32_t> unit_tasks_{1};
  std::unique_ptr<Range[]> ranges_;                       // [threads]
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // tasks
  std::atomic<bool> failed_{false};

  // What idle workers wait on, and the workers. In a forked child they do not exist: nothing of
  // this may be touched there, not even destroyed.
  struct Workers {
    std::mutex sleep_mutex;
    std::condition_variable wake;
    std::vector<std::thread> threads;
  };

  bool forked() const { return fork_count() != forks_at_start_; }

  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::unique_ptr<Workers> workers_ = std::make_unique<Workers>();
  int threads_ = 1;
  const std::uint32_t forks_at_start_ = fork_count();

  std::mutex run_mutex_;  // one region at a time
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace specdec
