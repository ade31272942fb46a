#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/isa.h"
#include "backend/top_tokens.h"
#include "backend/verify.h"
#include "core/dequantize.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec {
namespace {

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(std::size_t bytes) : data_(allocate_aligned(bytes)), bytes_(bytes) {
    std::memset(data_.get(), 0, bytes);
  }
  void* data() override { return data_.get(); }
  std::size_t bytes() const override { return bytes_; }

 private:
  AlignedBytes data_;
  std::size_t bytes_;
};

}  // namespace

std::size_t CpuWorkspace::bytes() const {
  std::size_t total = verify.bytes();
  for (const Area& area : areas_) total += area.bytes;
  for (const Area& area : per_thread_) total += area.bytes;
  return total;
}

std::uint8_t* CpuWorkspace::grow(Area& area, std::size_t bytes) {
  if (bytes > area.bytes) {
    const std::size_t enough = std::max(bytes + bytes / 4, std::size_t{4096});
    area = Area{};  // give the old memory back first: nothing in it is needed
    area.data = allocate_aligned(enough);
    area.bytes = enough;
  }
  return area.data.get();
}

CpuBackend::CpuBackend(std::int32_t threads) : CpuBackend(threads, active_kernels()) {}

CpuBackend::CpuBackend(std::int32_t threads, const KernelTable& kernels)
    : kernels_(kernels), pool_(std::make_unique<ThreadPool>(threads)) {}

std::unique_ptr<Buffer> CpuBackend::allocate(std::size_t bytes) const {
  return std::make_unique<CpuBuffer>(bytes);
}

std::unique_ptr<Weight> CpuBackend::load_weight(const TensorView& source, WeightUse use) const {
  return std::make_unique<CpuWeight>(source, use, weights_, *pool_);
}

std::unique_ptr<Workspace> CpuBackend::make_workspace() const {
  return std::make_unique<CpuWorkspace>(pool_->threads());
}

void CpuBackend::upload(void* destination, const void* host_source, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(destination, host_source, bytes);
}

void CpuBackend::download(Workspace&, void* host_destination, const void* source,
                          std::size_t bytes) const {
  if (bytes > 0) std::memcpy(host_destination, source, bytes);
}

void CpuBackend::embed_rows(Workspace&, const Pass& pass, const Weight& table, float* out) const {
  const CpuWeight& weight = as_cpu(table);
  const std::size_t cols = weight.cols();
  for (std::int32_t i = 0; i < pass.rows; ++i) {
    const TokenId token = known_token(pass.tokens[i], pass.drawn);
    SPECDEC_CHECK(token >= 0 && static_cast<std::size_t>(token) < weight.rows(), "token ", token,
                  " of ", weight.rows());
  }
  const auto rows = static_cast<std::size_t>(pass.rows);
  for_rows(rows, rows * cols, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto token = static_cast<std::size_t>(known_token(pass.tokens[i], pass.drawn));
      dequantize_row(weight.dtype(), weight.source_row(token), out + i * cols, cols);
    }
  });
}

void CpuBackend::rms_norm(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                          const float* gain, float eps, float* out) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      kernels_.rms_norm(x + i * k, gain, k, eps, out + i * k);
    }
  });
}

void CpuBackend::layer_norm(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                            const float* gain, const float* bias, float eps, float* out) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      kernels_.layer_norm(x + i * k, gain, bias, k, eps, out + i * k);
    }
  });
}

void CpuBackend::add_bias(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                          const float* bias) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) kernels_.add(x + i * k, bias, k);
  });
}

void CpuBackend::scale(Workspace&, std::int64_t count, float* x, float factor) const {
  const auto n = static_cast<std::size_t>(count);
  for_rows(n, n, [&](std::size_t begin, std::size_t end) {
    kernels_.scale(x + begin, end - begin, factor);
  });
}

void CpuBackend::scale_rows(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                            const float* factors) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) kernels_.scale(x + i * k, k, factors[i]);
  });
}

void CpuBackend::soft_cap(Workspace&, std::int64_t count, float* x, float cap) const {
  const auto n = static_cast<std::size_t>(count);
  for_rows(n, n, [&](std::size_t begin, std::size_t end) {
    kernels_.soft_cap(x + begin, end - begin, cap);
  });
}

void CpuBackend::add_gated(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                           const float* y, const float* gate) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float share = 1.0f / (1.0f + exp_f32(0.0f - gate[i]));
      kernels_.add_scaled(x + i * k, y + i * k, k, share);
    }
  });
}

void CpuBackend::add(Workspace&, std::int64_t count, float* x, const float* y) const {
  const auto n = static_cast<std::size_t>(count);
  for_rows(n, n, [&](std::size_t begin, std::size_t end) {
    kernels_.add(x + begin, y + begin, end - begin);
  });
}

void CpuBackend::copy_rows(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                           std::int64_t x_stride, float* out, std::int64_t out_stride) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const auto row = static_cast<std::int64_t>(i);
      std::memcpy(out + row * out_stride, x + row * x_stride, k * sizeof(float));
    }
  });
}

void CpuBackend::add_silu(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                          const float* y, const float* bias) const {
  const auto m = static_cast<std::size_t>(rows), k = static_cast<std::size_t>(cols);
  for_rows(m, m * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin * k; i < end * k; i += k) {
      for (std::size_t j = 0; j < k; ++j) {
        const float value = y[i + j] + bias[j];
        x[i + j] += value / (1.0f + exp_f32(-value));
      }
    }
  });
}

void CpuBackend::scatter_logits(Workspace&, std::int32_t count, const float* logits,
                                const TokenId* ids, std::int32_t vocab, float* out) const {
  std::fill_n(out, vocab, -std::numeric_limits<float>::infinity());
  for (std::int32_t i = 0; i < count; ++i) {
    SPECDEC_CHECK(ids[i] >= 0 && ids[i] < vocab, "token ", ids[i], " of ", vocab);
    out[ids[i]] = logits[i];
  }
}

std::vector<TokenProb> CpuBackend::top_tokens(Workspace&, const DistributionView& dist,
                                              std::int32_t vocab, std::int32_t count) const {
  return top_tokens_on_host(dist, vocab, count);
}

}  // namespace specdec
