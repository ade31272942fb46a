// Memory and the dense operations. Attention is in ref_attention.cpp, sampling in ref_sampling.cpp.
#include "backend/ref/ref_backend.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "backend/ref/ref_weight.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec {
namespace {

class RefBuffer final : public Buffer {
 public:
  explicit RefBuffer(std::size_t bytes) : bytes_(bytes), memory_(bytes / sizeof(double) + 1) {}
  void* data() override { return memory_.data(); }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  std::vector<double> memory_;  // zeroed; double for its alignment
};

}  // namespace

std::unique_ptr<Buffer> RefBackend::allocate(std::size_t bytes) const {
  return std::make_unique<RefBuffer>(bytes);
}

std::unique_ptr<Weight> RefBackend::load_weight(const TensorView& source, WeightUse) const {
  return std::make_unique<RefWeight>(source);
}

std::unique_ptr<Workspace> RefBackend::make_workspace() const {
  return std::make_unique<RefWorkspace>();
}

void RefBackend::upload(void* destination, const void* host_source, std::size_t bytes) const {
  if (bytes > 0) std::memcpy(destination, host_source, bytes);
}

void RefBackend::download(Workspace&, void* host_destination, const void* source,
                          std::size_t bytes) const {
  if (bytes > 0) std::memcpy(host_destination, source, bytes);
}

void RefBackend::embed_rows(Workspace&, const Pass& pass, const Weight& table, float* out) const {
  const std::size_t cols = table.cols();
  for (std::int32_t i = 0; i < pass.rows; ++i) {
    const TokenId token = known_token(pass.tokens[i], pass.drawn);
    SPECDEC_CHECK(token >= 0 && static_cast<std::size_t>(token) < table.rows(), "token ", token,
                  " of an embedding table of ", table.rows(), " rows");
    as_ref(table).decode_row(static_cast<std::size_t>(token),
                             out + static_cast<std::size_t>(i) * cols);
  }
}

void RefBackend::rms_norm(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                          const float* gain, float eps, float* out) const {
  for (std::int32_t i = 0; i < rows; ++i) {
    double sum = 0.0;
    for (std::int32_t k = 0; k < cols; ++k) sum += static_cast<double>(x[k]) * x[k];
    const double scale = 1.0 / std::sqrt(sum / cols + static_cast<double>(eps));
    for (std::int32_t k = 0; k < cols; ++k) out[k] = static_cast<float>(x[k] * scale * gain[k]);
    x += cols;
    out += cols;
  }
}

void RefBackend::layer_norm(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                            const float* gain, const float* bias, float eps, float* out) const {
  for (std::int32_t i = 0; i < rows; ++i, x += cols, out += cols) {
    double sum = 0.0, squares = 0.0;
    for (std::int32_t k = 0; k < cols; ++k) sum += static_cast<double>(x[k]);
    const double mean = sum / cols;
    for (std::int32_t k = 0; k < cols; ++k) {
      const double centred = static_cast<double>(x[k]) - mean;
      squares += centred * centred;
    }
    const double inv = 1.0 / std::sqrt(squares / cols + static_cast<double>(eps));
    for (std::int32_t k = 0; k < cols; ++k) {
      const double shift = bias == nullptr ? 0.0 : static_cast<double>(bias[k]);
      out[k] = static_cast<float>((static_cast<double>(x[k]) - mean) * inv * gain[k] + shift);
    }
  }
}

std::vector<double> ref_product(std::size_t rows, const float* x, const Weight& weight,
                                std::size_t matrix) {
  const std::size_t n_rows = weight.rows(), cols = weight.cols();
  SPECDEC_CHECK(matrix < weight.matrices(), "matrix ", matrix, " of ", weight.matrices());
  std::vector<double> out(rows * n_rows);
  std::vector<float> decoded(cols);
  for (std::size_t n = 0; n < n_rows; ++n) {
    as_ref(weight).decode_row(matrix * n_rows + n, decoded.data());
    for (std::size_t i = 0; i < rows; ++i) {
      double sum = 0.0;
      for (std::size_t k = 0; k < cols; ++k) {
        sum += static_cast<double>(x[i * cols + k]) * static_cast<double>(decoded[k]);
      }
      out[i * n_rows + n] = sum;
    }
  }
  return out;
}

std::vector<double> ref_product(std::size_t rows, const float* x, const Weight& weight,
                                const float* bias, std::size_t matrix) {
  std::vector<double> out = ref_product(rows, x, weight, matrix);
  const std::size_t n_rows = weight.rows();
  for (std::size_t i = 0; bias != nullptr && i < out.size(); ++i) {
    out[i] += static_cast<double>(bias[i % n_rows]);
  }
  return out;
}

void RefBackend::matmul(Workspace&, std::int32_t rows, const float* x, const Weight& weight,
                        float* out) const {
  const std::vector<double> product = ref_product(static_cast<std::size_t>(rows), x, weight);
  for (std::size_t i = 0; i < product.size(); ++i) out[i] = static_cast<float>(product[i]);
}

void RefBackend::add(Workspace&, std::int64_t count, float* x, const float* y) const {
  for (std::int64_t i = 0; i < count; ++i) x[i] += y[i];
}

void RefBackend::add_bias(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                          const float* bias) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < cols; ++k) x[i * cols + k] += bias[k];
  }
}

void RefBackend::scale(Workspace&, std::int64_t count, float* x, float factor) const {
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factor;
}

void RefBackend::scale_rows(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                            const float* factors) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < cols; ++k) x[i * cols + k] *= factors[i];
  }
}

void RefBackend::soft_cap(Workspace&, std::int64_t count, float* x, float cap) const {
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = static_cast<float>(ref_soft_cap(static_cast<double>(x[i]), static_cast<double>(cap)));
  }
}

void RefBackend::add_gated(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                           const float* y, const float* gate) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    const double share = 1.0 / (1.0 + exp_f64(-static_cast<double>(gate[i])));
    for (std::int64_t k = i * cols; k < (i + 1) * cols; ++k) {
      x[k] = static_cast<float>(static_cast<double>(x[k]) + share * static_cast<double>(y[k]));
    }
  }
}

void RefBackend::copy_rows(Workspace&, std::int32_t rows, std::int32_t cols, const float* x,
                           std::int64_t x_stride, float* out, std::int64_t out_stride) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < cols; ++k) out[i * out_stride + k] = x[i * x_stride + k];
  }
}

void RefBackend::add_silu(Workspace&, std::int32_t rows, std::int32_t cols, float* x,
                          const float* y, const float* bias) const {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < cols; ++k) {
      const double value = static_cast<double>(y[i * cols + k]) + static_cast<double>(bias[k]);
      const double silu = value / (1.0 + exp_f64(-value));
      x[i * cols + k] = static_cast<float>(static_cast<double>(x[i * cols + k]) + silu);
    }
  }
}

}  // namespace specdec
