#include "backend/machine_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "backend/cpu/isa.h"
#include "core/cpu_cache.h"

namespace specdec {
namespace {

constexpr std::size_t kLineWords = 8;             // 64 bytes
constexpr std::size_t kAheadWords = 1024;         // how far ahead memory is asked for
constexpr std::size_t kPieceWords = 1024 * 1024;  // of the buffer, per task
constexpr std::size_t kPieceBytes = kPieceWords * sizeof(std::uint64_t);
constexpr std::size_t kLeastBytes = std::size_t{256} << 20;
constexpr std::size_t kPeakTasks = 4;  // per thread
constexpr double kPeakTaskSeconds = 0.0025;

// Adds up whole lines: eight independent sums, which the compiler keeps in vectors.
std::uint64_t sum_words(const std::uint64_t* p, std::size_t count) {
  std::uint64_t sums[kLineWords] = {};
  for (std::size_t i = 0; i < count; i += kLineWords) {
#if defined(__GNUC__)
    __builtin_prefetch(p + i + kAheadWords, 0, 3);
#endif
    for (std::size_t j = 0; j < kLineWords; ++j) sums[j] += p[i + j];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

std::uint64_t multiply_add(const KernelTable& kernels, std::size_t blocks) {
  alignas(64) std::uint8_t planes[1024];
  ActBlock act[kMaxTileCols] = {};
  float sink[kMaxTileCols * kGroupRows];
  for (std::size_t i = 0; i < sizeof(planes); ++i) planes[i] = static_cast<std::uint8_t>(i % 16);
  for (ActBlock& block : act) {
    for (int i = 0; i < kActBlockSize; ++i) block.q[i] = static_cast<std::int8_t>(i % 2 ? -1 : 1);
  }
  return kernels.int8_peak(planes, act, blocks, sink);
}

}  // namespace

MachineProbe::MachineProbe(std::int32_t threads) : pool_(threads) {
  const std::size_t pieces = std::max(kLeastBytes, 4 * last_cache_bytes()) / kPieceBytes;
  bytes_ = pieces * kPieceBytes;
  buffer_ = allocate_aligned(bytes_);
  auto* words = reinterpret_cast<std::uint64_t*>(buffer_.get());
  pool_.parallel_for(pieces, [&](std::size_t piece, int) {
    std::fill_n(words + piece * kPieceWords, kPieceWords, piece + 1);
  });
}

template <typename Body>
double MachineProbe::seconds(bool all_threads, std::size_t tasks, const Body& body) {
  std::atomic<std::uint64_t> total{0};
  const auto run = [&](std::size_t task, int) { total += body(task); };
  const auto begin = std::chrono::steady_clock::now();
  if (all_threads) {
    pool_.parallel_for(tasks, run);
  } else {
    for (std::size_t task = 0; task < tasks; ++task) run(task, 0);
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  kept_ += total;
  return std::max(time.count(), 1e-9);
}

double MachineProbe::read_bandwidth(bool all_threads) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(buffer_.get());
  const double time = seconds(all_threads, bytes_ / kPieceBytes, [&](std::size_t piece) {
    return sum_words(words + piece * kPieceWords, kPieceWords);
  });
  return static_cast<double>(bytes_) / time;
}

double MachineProbe::int8_peak(bool all_threads) {
  const KernelTable& kernels = active_kernels();
  if (peak_blocks_ == 0) {
    constexpr std::size_t kTrial = 2000;  // the levels' speeds differ a hundredfold
    const double trial =
        seconds(false, 1, [&](std::size_t) { return multiply_add(kernels, kTrial); });
    peak_blocks_ = std::max<std::size_t>(
        kTrial, static_cast<std::size_t>(kPeakTaskSeconds / trial * static_cast<double>(kTrial)));
  }
  const std::size_t tasks = kPeakTasks * static_cast<std::size_t>(all_threads ? threads() : 1);
  const std::uint64_t before = kept_;
  const double time =
      seconds(all_threads, tasks, [&](std::size_t) { return multiply_add(kernels, peak_blocks_); });
  return static_cast<double>(kept_ - before) / time;
}

}  // namespace specdec
