#include "backend/profiling_backend.h"

#include <algorithm>
#include <initializer_list>

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double elements(const Weight& weight) {
  return static_cast<double>(weight.rows()) * static_cast<double>(weight.cols());
}

void add_weights(OpProfile& op, std::int32_t rows, std::initializer_list<const Weight*> weights) {
  for (const Weight* const* it = weights.begin(); it != weights.end(); ++it) {
    const DType dtype = (*it)->dtype();
    op.bytes += stored_bytes(**it);
    op.multiply_adds += static_cast<double>(rows) * elements(**it);
    if (std::any_of(weights.begin(), it, [&](const Weight* w) { return w->dtype() == dtype; })) {
      continue;  // its type is named already
    }
    if (!op.types.empty()) op.types += '+';
    op.types += dtype_info(dtype).name;
  }
}

// Keys and values that the rows of a pass attend to in one layer, read once.
double cache_bytes(const Pass& pass) {
  double bytes = 0.0;
  for (std::int32_t i = 0; i < pass.segment_count; ++i) {
    const Segment& segment = pass.segments[i];
    const KvCacheView& cache = segment.cache;
    bytes += 2.0 * static_cast<double>(segment.base + segment.rows) *
             static_cast<double>(cache.kv_heads) * static_cast<double>(cache.row_bytes());
  }
  return bytes;
}

void nothing(OpProfile&) {}

}  // namespace

double stored_bytes(const Weight& weight) {
  return static_cast<double>(weight.rows()) *
         static_cast<double>(row_bytes(weight.dtype(), weight.cols()));
}

void ProfilingBackend::start() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ops_.clear();
  running_ = true;
}

void ProfilingBackend::stop() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
}

std::vector<OpProfile> ProfilingBackend::results() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ops_;
}

void ProfilingBackend::name_weight(const Weight& weight, std::string name) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& entry : names_) {
    if (entry.first == &weight) {
      entry.second = std::move(name);
      return;
    }
  }
  names_.emplace_back(&weight, std::move(name));
}

std::string ProfilingBackend::weight_name(const Weight& weight) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& entry : names_) {
    if (entry.first == &weight) return entry.second;
  }
  return "matmul";
}

void ProfilingBackend::record(const OpProfile& once) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(ops_.begin(), ops_.end(), [&](const OpProfile& op) {
    return op.op == once.op && op.types == once.types;
  });
  if (found == ops_.end()) {
    ops_.push_back(once);
    return;
  }
  found->calls += once.calls;
  found->seconds += once.seconds;
  found->bytes += once.bytes;
  found->multiply_adds += once.multiply_adds;
}

template <typename Describe, typename Run>
void ProfilingBackend::measured(const char* op, const Describe& describe, const Run& run) const {
  bool running = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running = running_;
  }
  if (!running) return run();
  const Clock::time_point begin = Clock::now();
  run();
  OpProfile once{op, "", 1, seconds_since(begin)};
  describe(once);
  record(once);
}

// --- Memory: passed on, not measured -------------------------------------------------------------

std::unique_ptr<Buffer> ProfilingBackend::allocate(std::size_t bytes) const {
  return inner_->allocate(bytes);
}
std::unique_ptr<Weight> ProfilingBackend::load_weight(const TensorView& source,
                                                      WeightUse use) const {
  return inner_->load_weight(source, use);
}
std::unique_ptr<Workspace> ProfilingBackend::make_workspace() const {
  return inner_->make_workspace();
}
void ProfilingBackend::upload(void* destination, const void* host_source, std::size_t bytes) const {
  inner_->upload(destination, host_source, bytes);
}
void ProfilingBackend::download(Workspace& ws, void* host_destination, const void* source,
                                std::size_t bytes) const {
  inner_->download(ws, host_destination, source, bytes);
}

// --- Operations ----------------------------------------------------------------------------------

void ProfilingBackend::embed_rows(Workspace& ws, const Pass& pass, const Weight& table,
                                  float* out) const {
  const auto describe = [&](OpProfile& op) {
    op.types = dtype_info(table.dtype()).name;
    op.bytes = static_cast<double>(pass.rows) *
               static_cast<double>(row_bytes(table.dtype(), table.cols()));
  };
  measured("embed", describe, [&] { inner_->embed_rows(ws, pass, table, out); });
}

void ProfilingBackend::rms_norm(Workspace& ws, std::int32_t rows, std::int32_t cols, const float* x,
                                const float* gain, float eps, float* out) const {
  measured("norm", nothing, [&] { inner_->rms_norm(ws, rows, cols, x, gain, eps, out); });
}

void ProfilingBackend::layer_norm(Workspace& ws, std::int32_t rows, std::int32_t cols,
                                  const float* x, const float* gain, const float* bias, float eps,
                                  float* out) const {
  measured("norm", nothing, [&] { inner_->layer_norm(ws, rows, cols, x, gain, bias, eps, out); });
}

void ProfilingBackend::matmul(Workspace& ws, std::int32_t rows, const float* x,
                              const Weight& weight, float* out) const {
  const auto describe = [&](OpProfile& op) {
    op.op = weight_name(weight);
    add_weights(op, rows, {&weight});
  };
  measured("matmul", describe, [&] { inner_->matmul(ws, rows, x, weight, out); });
}

void ProfilingBackend::qkv_rope_store(Workspace& ws, const Pass& pass, std::int32_t layer,
                                      const float* x, const QkvWeights& weights,
                                      const AttentionShape& shape, float* q_out) const {
  const auto describe = [&](OpProfile& op) {
    add_weights(op, pass.rows, {weights.q, weights.k, weights.v});
  };
  measured("qkv", describe,
           [&] { inner_->qkv_rope_store(ws, pass, layer, x, weights, shape, q_out); });
}

void ProfilingBackend::attention(Workspace& ws, const Pass& pass, std::int32_t layer,
                                 const float* q, const AttentionShape& shape, float* out) const {
  measured(
      "attention", [&](OpProfile& op) { op.bytes = cache_bytes(pass); },
      [&] { inner_->attention(ws, pass, layer, q, shape, out); });
}

void ProfilingBackend::gated_mlp(Workspace& ws, std::int32_t rows, const float* x,
                                 const MlpWeights& weights, float* out) const {
  const auto describe = [&](OpProfile& op) {
    if (weights.gate == nullptr) {
      add_weights(op, rows, {weights.up, weights.down});
    } else {
      add_weights(op, rows, {weights.gate, weights.up, weights.down});
    }
  };
  measured("mlp", describe, [&] { inner_->gated_mlp(ws, rows, x, weights, out); });
}

// Counts each turn of a row with an expert as a read of that expert: the most that it can be.
void ProfilingBackend::expert_mlp(Workspace& ws, std::int32_t rows, const float* x,
                                  const ExpertWeights& weights, float* out) const {
  const auto describe = [&](OpProfile& op) {
    const auto experts = static_cast<double>(weights.router->rows());
    const double turns = static_cast<double>(rows) * weights.used;
    OpProfile one;
    add_weights(one, 1, {weights.mlp.gate, weights.mlp.up, weights.mlp.down});
    add_weights(op, rows, {weights.router});
    op.types = one.types;
    op.bytes += std::min(turns, experts) * one.bytes;
    op.multiply_adds += turns * one.multiply_adds;
  };
  measured("experts", describe, [&] { inner_->expert_mlp(ws, rows, x, weights, out); });
}

void ProfilingBackend::add_bias(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                                const float* bias) const {
  measured("add", nothing, [&] { inner_->add_bias(ws, rows, cols, x, bias); });
}

void ProfilingBackend::scale(Workspace& ws, std::int64_t count, float* x, float factor) const {
  measured("scale", nothing, [&] { inner_->scale(ws, count, x, factor); });
}

void ProfilingBackend::scale_rows(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                                  const float* factors) const {
  measured("scale", nothing, [&] { inner_->scale_rows(ws, rows, cols, x, factors); });
}

void ProfilingBackend::soft_cap(Workspace& ws, std::int64_t count, float* x, float cap) const {
  measured("soft_cap", nothing, [&] { inner_->soft_cap(ws, count, x, cap); });
}

void ProfilingBackend::add_gated(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                                 const float* y, const float* gate) const {
  measured("add", nothing, [&] { inner_->add_gated(ws, rows, cols, x, y, gate); });
}

void ProfilingBackend::add(Workspace& ws, std::int64_t count, float* x, const float* y) const {
  measured("add", nothing, [&] { inner_->add(ws, count, x, y); });
}

void ProfilingBackend::copy_rows(Workspace& ws, std::int32_t rows, std::int32_t cols,
                                 const float* x, std::int64_t x_stride, float* out,
                                 std::int64_t out_stride) const {
  measured("copy_rows", nothing,
           [&] { inner_->copy_rows(ws, rows, cols, x, x_stride, out, out_stride); });
}

void ProfilingBackend::add_silu(Workspace& ws, std::int32_t rows, std::int32_t cols, float* x,
                                const float* y, const float* bias) const {
  measured("add_silu", nothing, [&] { inner_->add_silu(ws, rows, cols, x, y, bias); });
}

void ProfilingBackend::scatter_logits(Workspace& ws, std::int32_t count, const float* logits,
                                      const TokenId* ids, std::int32_t vocab, float* out) const {
  measured("scatter_logits", nothing,
           [&] { inner_->scatter_logits(ws, count, logits, ids, vocab, out); });
}

void ProfilingBackend::keep_rows(Workspace& ws, const KvCacheView& cache, std::int32_t base,
                                 const std::int32_t* rows, std::int32_t count) const {
  measured("keep_rows", nothing, [&] { inner_->keep_rows(ws, cache, base, rows, count); });
}

void ProfilingBackend::adjust_logits(Workspace& ws, const float* logits, const DrawParams& draw,
                                     const TokenCounts& counts, float* out) const {
  measured("adjust_logits", nothing, [&] { inner_->adjust_logits(ws, logits, draw, counts, out); });
}

std::uint64_t ProfilingBackend::distribution(Workspace& ws, const float* logits, std::int32_t vocab,
                                             const FilterParams& filter,
                                             const std::uint32_t* mask_bits,
                                             float* weight_out) const {
  std::uint64_t mass = 0;
  measured("distribution", nothing,
           [&] { mass = inner_->distribution(ws, logits, vocab, filter, mask_bits, weight_out); });
  return mass;
}

TokenId ProfilingBackend::draw(Workspace& ws, const DistributionView& dist, std::int32_t vocab,
                               std::uint64_t seed, std::uint64_t position,
                               RngPurpose purpose) const {
  TokenId token = 0;
  measured("draw", nothing,
           [&] { token = inner_->draw(ws, dist, vocab, seed, position, purpose); });
  return token;
}

float ProfilingBackend::log_probabilities(Workspace& ws, const float* logits, std::int32_t vocab,
                                          TokenId token, std::int32_t count,
                                          TokenLogprob* top) const {
  float logprob = 0.0f;
  measured("logprobs", nothing,
           [&] { logprob = inner_->log_probabilities(ws, logits, vocab, token, count, top); });
  return logprob;
}

std::vector<TokenProb> ProfilingBackend::top_tokens(Workspace& ws, const DistributionView& dist,
                                                    std::int32_t vocab, std::int32_t count) const {
  std::vector<TokenProb> top;
  measured("top_tokens", nothing, [&] { top = inner_->top_tokens(ws, dist, vocab, count); });
  return top;
}

Verdict ProfilingBackend::verify(Workspace& ws, const VerifyInput& input) const {
  Verdict verdict;
  measured("verify", nothing, [&] { verdict = inner_->verify(ws, input); });
  return verdict;
}

}  // namespace specdec
