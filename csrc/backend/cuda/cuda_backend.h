// The CUDA backend: host side. Each operation checks its arguments, finds scratch memory and queues
// kernels (kernels/) on the workspace's stream; only download, distribution, draw,
// log_probabilities, top_tokens and verify wait. The arithmetic is that of the cpu backend, bit for
// bit.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device_weight.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/sampling_types.h"
#include "backend/cuda/recorded_passes.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/staging.h"
#include "core/error.h"

namespace specdec::cuda {

// What a scratch area holds. Two areas in use at once have different names.
enum class Area : int {
  kActValues,  // a quantised input of products
  kActScales,
  kActHalves,
  kArranged,  // an input of float products
  kGate,      // hidden features of an MLP
  kUp,
  kExpertLogits,  // a mixture: router logits, the experts of each row, their weights
  kExpertIds,
  kExpertWeights,
  kExpertParts,  // the columns of the experts, see Columns; what the experts made of them
  kExpertSources,
  kExpertPlaces,
  kExpertOutput,
  kKeys,  // k and v of a pass before rotation and storing
  kValues,
  kTokens,  // of a pass
  kPass,    // what a pass changes from the one before: see PassOnDevice
  kPartials,
  kKept,
  kUpload,  // what the host gives a sampling operation
  kAdjusted,
  kZ,
  kRanks,
  kWeights,
  kTotals,
  kChosen,
  kShares,
  kResult,
  kCount,
};

// The int8 form of x [rows, 32 * view.blocks], which the norm that made x has left.
struct PreparedInput {
  const float* x = nullptr;
  int rows = 0;
  ActivationView view;
  std::uint64_t uploads = 0;  // CudaBackend::uploads() when it was made
};

// A segment of a pass as kernels find it. They read what is behind the pointers, so that a recorded
// pass can be repeated for another position and another tree.
struct SegmentOnDevice {
  const int* base = nullptr;     // [1] cached positions before the pass
  const int* paths = nullptr;    // [rows, rows] of a tree, see AttentionSegment
  const int* lengths = nullptr;  // [rows]
  int chunks = 0;                // of attention: at least as many as its longest row has
};

// Grow-only scratch memory and the stream of one session.
class CudaWorkspace final : public Workspace {
 public:
  // waits: counts the waits for its stream.
  CudaWorkspace(int device, std::atomic<std::size_t>& waits) : device_(device), staging_(waits) {}
  std::size_t bytes() const override;
  RecordingCounts recordings() const override { return recorded_passes_.counts(); }
  void mark_time() override;
  double ms_since_mark() override;

  StreamHandle stream() const { return stream_.handle(); }
  int device() const { return device_; }

  // At least `count` elements, valid until the next call for the same area.
  template <typename T>
  T* get(Area area, std::size_t count) {
    return static_cast<T*>(grow(area, count * sizeof(T)));
  }

  // Room for columns [count, cols] as int8; valid until the next call.
  ActivationView activations(int count, std::size_t cols);

  // What a norm leaves, `leave_prepared` as its last act, is for the next operation alone: any
  // other may write to x.
  void begin_operation() { prepared_ = std::exchange(left_, {}); }
  void leave_prepared(const PreparedInput& input) { left_ = input; }
  const PreparedInput& prepared() const { return prepared_; }

  // To the device, in the order of the stream; the source may change afterwards.
  void send(void* destination, const void* source, std::size_t bytes) {
    staging_.send(stream(), destination, source, bytes);
  }
  // From the device, waits for the stream.
  void receive(void* destination, const void* source, std::size_t bytes) {
    staging_.receive(stream(), destination, source, bytes);
  }

  // Grows with every area that moves: what was recorded before points to the old one.
  std::int64_t generation() const { return generation_; }
  Event& event() { return event_; }
  RecordedPasses& recorded_passes() { return recorded_passes_; }

  void check_pass(const Pass& pass) const {
    SPECDEC_CHECK(segments.size() == static_cast<std::size_t>(pass.segment_count),
                  "begin_pass was told of ", segments.size(), " segments, not of ",
                  pass.segment_count);
  }

  // The segments of the pass, and what of them a recording depends on: nothing where there is none.
  std::vector<SegmentOnDevice> segments;
  RecordedPasses::Key segments_key;
  bool recordable = true;

 private:
  void* grow(Area area, std::size_t bytes);

  int device_;
  Stream stream_;
  Event event_, timed_from_{true}, timed_to_{true};
  Staging staging_;
  RecordedPasses recorded_passes_;
  std::int64_t generation_ = 0;
  PreparedInput prepared_, left_;
  std::array<DeviceMemory, static_cast<std::size_t>(Area::kCount)> areas_;
};

class CudaBackend final : public Backend {
 public:
  // Throws BackendUnavailableError where the device cannot run this build's kernels.
  CudaBackend(std::string name, int device);

  std::string name() const override { return name_; }
  std::int32_t threads() const override { return 1; }
  std::int32_t device() const override { return device_; }
  std::optional<std::size_t> free_bytes() const override;

  std::size_t waits() const override { return waits_; }

  // Runs what the kernels build on against the host's results; a line for each kind of fault.
  std::vector<std::string> self_test() const;

  std::unique_ptr<Buffer> allocate(std::size_t bytes) const override;
  std::unique_ptr<Weight> load_weight(const TensorView& source, WeightUse use) const override;
  std::unique_ptr<Workspace> make_workspace() const override;
  void upload(void* destination, const void* host_source, std::size_t bytes) const override;
  void upload_in_order(Workspace& ws, void* destination, const void* host_source,
                       std::size_t bytes) const override;
  void download(Workspace& workspace, void* host_destination, const void* source,
                std::size_t bytes) const override;
  void order(Workspace& earlier, Workspace& later) const override;
  void begin_pass(Workspace& ws, const Pass& pass) const override;
  bool run_recorded(Workspace& ws, std::span<const std::int64_t> key,
                    const std::function<bool()>& body) const override;

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
  void filter_and_draw(Workspace& ws, const float* logits, std::int32_t vocab,
                       const FilterParams& filter, float* weight_out, std::uint64_t seed,
                       std::uint64_t position, RngPurpose purpose, DrawnToken* out) const override;
  float log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab, TokenId token,
                          std::int32_t count, TokenLogprob* top) const override;
  void rank_tokens(Workspace& ws, const float* logits, std::int32_t vocab,
                   const FilterParams& filter, std::int32_t count, float* weight_out,
                   DrawnToken* out) const override;
  std::vector<TokenProb> top_tokens(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                                    std::int32_t count) const override;
  Verdict verify(Workspace& ws, const VerifyInput& input) const override;

 private:
  // The workspace at the start of an operation, its device made that of the calling thread.
  CudaWorkspace& use(Workspace& workspace) const;
  // Each column through the MLP of its matrix, without the bias of down. out [columns, E]
  void run_mlps(CudaWorkspace& ws, const Columns& columns, const float* x,
                const MlpWeights& weights, float* out) const;

  std::string name_;
  int device_;
  mutable std::atomic<std::uint64_t> uploads_ = 0;  // so far, to any memory
  mutable std::atomic<std::size_t> waits_ = 0;
};

}  // namespace specdec::cuda
