// The CPU backend: threads and the loops over weights, rows and cache chunks; the arithmetic is in
// the kernels (kernels.inl). README.md in backend/ lists the numerics of each operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernel_table.h"
#include "backend/cpu/packed_weight.h"
#include "backend/verify.h"
#include "core/aligned_memory.h"
#include "core/thread_pool.h"

namespace specdec {

// What a scratch area of a workspace holds. Two areas in use at once have different names.
enum class Scratch : int {
  kActs,      // quantised input of a product
  kMoreActs,  // the same for the other activation kinds of a qkv
  kLastActs,
  kHiddenActs,    // prepared hidden rows of an MLP
  kHidden,        // hidden rows before that, for float weights
  kExpertLogits,  // a mixture: router logits
  kExpertIds,     // the experts of each row, their weights
  kExpertWeights,
  kExpertSlots,  // where a row's turn with an expert stands among those of all experts
  kExpertBatches,
  kExpertInput,  // rows by expert, and what the experts made of them
  kExpertOutput,
  kKeys,  // k of a pass before rotation
  kValues,
  kPaths,  // tree paths of the rows
  kPathLengths,
  kSegments,
  kTasks,
  kPartials,  // attention: results of the chunks
  kLogits,    // z of a row of logits
  kRanks,     // how its tokens rank for typical-p
  kCandidates,
  kHistogram,
  kCount,
};

// Grow-only scratch memory of one session: after a few passes nothing is allocated any more.
class CpuWorkspace final : public Workspace {
 public:
  explicit CpuWorkspace(int threads) : per_thread_(static_cast<std::size_t>(threads)) {}
  std::size_t bytes() const override;

  // At least `count` elements, 64-byte aligned; valid until the next call for the same area.
  template <typename T>
  T* get(Scratch area, std::size_t count) {
    return reinterpret_cast<T*>(grow(areas_[static_cast<std::size_t>(area)], count * sizeof(T)));
  }
  // The same, private to one thread of a parallel region.
  template <typename T>
  T* get_for_thread(int slot, std::size_t count) {
    return reinterpret_cast<T*>(
        grow(per_thread_[static_cast<std::size_t>(slot)], count * sizeof(T)));
  }

  VerifyScratch verify;

 private:
  struct Area {
    AlignedBytes data;
    std::size_t bytes = 0;
  };
  static std::uint8_t* grow(Area& area, std::size_t bytes);

  Area areas_[static_cast<std::size_t>(Scratch::kCount)];
  std::vector<Area> per_thread_;
};

inline std::size_t round_up_16(std::size_t n) { return (n + 15) / 16 * 16; }

// How M rows are dealt into tiles of columns that a matmul kernel takes at once: as even as
// possible.
struct ColumnTiles {
  ColumnTiles(std::size_t rows, std::size_t most)
      : count((rows + most - 1) / most), base(rows / count), extra(rows % count) {}
  std::size_t first(std::size_t tile) const { return tile * base + (tile < extra ? tile : extra); }
  std::size_t width(std::size_t tile) const { return base + (tile < extra ? 1 : 0); }

  std::size_t count, base, extra;
};

// Rows [first, first + rows) of an input, which go to one matrix of a stack.
struct MatrixRows {
  std::size_t matrix = 0, first = 0, rows = 0;
};

// One product of a parallel region: out = x W^T.
struct MatmulJob {
  const CpuWeight* weight = nullptr;
  const float* x = nullptr;        // see interleave_rows, for float weights
  const ActBlock* acts = nullptr;  // see quantize_rows, for packed weights
  float* out = nullptr;            // [M, out_stride]
  std::size_t out_stride = 0;
  std::size_t first_row = 0;  // of the weight: the one that out[:, 0] belongs to
  std::size_t matrix = 0;     // of a stack

  // The part of a job that belongs to some of its rows.
  MatmulJob of(const MatrixRows& part) const {
    MatmulJob job = *this;
    job.matrix = part.matrix;
    if (x != nullptr) job.x += part.first * round_up_16(weight->cols());
    if (acts != nullptr) job.acts += part.first * weight->blocks();
    if (out != nullptr) job.out += part.first * out_stride;
    return job;
  }
};

class CpuBackend final : public Backend {
 public:
  // threads <= 0: one per physical core. Kernels: see active_kernels().
  explicit CpuBackend(std::int32_t threads);
  CpuBackend(std::int32_t threads, const KernelTable& kernels);

  std::string name() const override { return "cpu"; }
  std::int32_t threads() const override { return pool_->threads(); }
  const KernelTable& kernels() const { return kernels_; }

  std::unique_ptr<Buffer> allocate(std::size_t bytes) const override;
  std::unique_ptr<Weight> load_weight(const TensorView& source, WeightUse use) const override;
  std::unique_ptr<Workspace> make_workspace() const override;
  void upload(void* destination, const void* host_source, std::size_t bytes) const override;
  void download(Workspace& workspace, void* host_destination, const void* source,
                std::size_t bytes) const override;

  void embed_rows(Workspace& ws, const Pass& pass, const Weight& table, float* out) const override;
  void rms_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                const float* gain, float eps, float* out) const override;
  void layer_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                  const float* gain, const float* bias, float eps, float* out) const override;
  void matmul(Workspace& ws, std::int32_t rows, const float* x, const Weight& weight,
              float* out) const override;
  void qkv_rope_store(Workspace& ws, const Pass& pass, std::int32_t layer, const float* x,
                      const QkvWeights& weights, const AttentionShape& shape,
                      float* q_out) const override;
  void attention(Workspace& ws, const Pass& pass, std::int32_t layer, const float* q,
                 const AttentionShape& shape, float* out) const override;
  void gated_mlp(Workspace& ws, std::int32_t rows, const float* x, const MlpWeights& weights,
                 float* out) const override;
  void expert_mlp(Workspace& ws, std::int32_t rows, const float* x, const ExpertWeights& weights,
                  float* out) const override;
  void add(Workspace& ws, std::int64_t count, float* x, const float* y) const override;
  void add_bias(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                const float* bias) const override;
  void scale(Workspace& ws, std::int64_t count, float* x, float factor) const override;
  void scale_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                  const float* factors) const override;
  void soft_cap(Workspace& ws, std::int64_t count, float* x, float cap) const override;
  void add_gated(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x, const float* y,
                 const float* gate) const override;
  void copy_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                 std::int64_t x_stride, float* out, std::int64_t out_stride) const override;
  void add_silu(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x, const float* y,
                const float* bias) const override;
  void scatter_logits(Workspace& ws, std::int32_t count, const float* logits, const TokenId* ids,
                      std::int32_t vocab, float* out) const override;
  void keep_rows(Workspace& ws, const KvCacheView& cache, std::int32_t base,
                 const std::int32_t* rows, std::int32_t count) const override;
  void adjust_logits(Workspace& ws, const float* logits, const DrawParams& draw,
                     const TokenCounts& counts, float* out) const override;
  std::uint64_t distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                             const FilterParams& filter, const std::uint32_t* mask_bits,
                             float* weight_out) const override;
  TokenId draw(Workspace& ws, const DistributionView& dist, std::int32_t vocab, std::uint64_t seed,
               std::uint64_t position, RngPurpose purpose) const override;
  float log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab, TokenId token,
                          std::int32_t count, TokenLogprob* top) const override;
  std::vector<TokenProb> top_tokens(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                                    std::int32_t count) const override;
  Verdict verify(Workspace& ws, const VerifyInput& input) const override;

 private:
  // Calls body(first, last) for pieces of [0, count), in parallel only where `work` (elements
  // touched) pays for a region.
  template <typename Body>
  void for_rows(std::size_t count, std::size_t work, const Body& body) const {
    constexpr std::size_t kWorthARegion = 32768;
    if (work < kWorthARegion || count < 2) return body(std::size_t{0}, count);
    const std::size_t pieces = std::min(count, 4 * static_cast<std::size_t>(pool_->threads()));
    pool_->parallel_for(pieces, [&](std::size_t piece, int) {
      body(count * piece / pieces, count * (piece + 1) / pieces);
    });
  }

  // Quantises x [M, K] for the kernels: tiles of columns, each [K / 32, width].
  void quantize_rows(std::size_t rows, const float* x, std::size_t k, const ActKind& kind,
                     ActBlock* out) const;
  // The same for float weights: tiles of columns, each [ceil(K / 16), width, 16].
  void interleave_rows(std::size_t rows, const float* x, std::size_t k, float* out) const;
  // Fills in job->acts or job->x for x [M, K], whose parts are prepared one by one.
  void prepare_input(CpuWorkspace& ws, Scratch area, std::span<const MatrixRows> parts,
                     const float* x, MatmulJob* job) const;
  // The same for jobs that share x; what two of them can share is made once.
  void prepare_inputs(CpuWorkspace& ws, std::span<const MatrixRows> parts, const float* x,
                      MatmulJob* jobs, std::size_t job_count) const;
  // Groups [begin, end) of a job.
  void multiply_groups(const MatmulJob& job, std::size_t rows, std::size_t begin,
                       std::size_t end) const;
  void multiply_packed(const MatmulJob& job, std::size_t rows, std::size_t begin,
                       std::size_t end) const;
  void multiply_float(const MatmulJob& job, std::size_t rows, std::size_t begin,
                      std::size_t end) const;
  // Runs all jobs in one parallel region.
  void multiply(const MatmulJob* jobs, std::size_t job_count, std::size_t rows) const;
  // Runs every part of a job, each with its matrix, in one parallel region.
  void multiply_parts(const MatmulJob& job, std::span<const MatrixRows> parts) const;
  // The MLPs of a stack over their parts of x [S, E]. out [S, E]
  void run_mlps(CpuWorkspace& ws, std::span<const MatrixRows> parts, const float* x,
                const MlpWeights& weights, float* out) const;
  // out[i] = activation(gate[i] + gate bias, up[i] + up bias) for features [first, first + count)
  // of a matrix's hidden row. gate, up are changed; out may be gate
  void activate(const MlpWeights& weights, std::size_t bias_at, std::size_t count, float* gate,
                float* up, float* out) const;
  // Groups per task of a region.
  std::size_t task_groups(std::size_t total_groups, std::size_t group_bytes) const;

  const KernelTable& kernels_;
  std::unique_ptr<ThreadPool> pool_;
  mutable Arena weights_;  // locks itself
};

inline CpuWorkspace& as_cpu(Workspace& workspace) { return static_cast<CpuWorkspace&>(workspace); }

}  // namespace specdec
