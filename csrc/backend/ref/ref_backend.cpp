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
    const TokenId token = pass.tokens[i];
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

std::vector<double> ref_product(std::size_t rows, const float* x, const Weight& weight) {
  const std::size_t n_rows = weight.rows(), cols = weight.cols();
  std::vector<double> out(rows * n_rows);
  std::vector<float> decoded(cols);
  for (std::size_t n = 0; n < n_rows; ++n) {
    as_ref(weight).decode_row(n, decoded.data());
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

void RefBackend::matmul(Workspace&, std::int32_t rows, const float* x, const Weight& weight,
                        float* out) const {
  const std::vector<double> product = ref_product(static_cast<std::size_t>(rows), x, weight);
  for (std::size_t i = 0; i < product.size(); ++i) out[i] = static_cast<float>(product[i]);
}

void RefBackend::gated_mlp(Workspace& ws, std::int32_t rows, const float* x,
                           const MlpWeights& weights, float* out) const {
  SPECDEC_CHECK(weights.activation == Activation::kSilu, "unknown activation");
  const auto m = static_cast<std::size_t>(rows);
  const std::vector<double> gate = ref_product(m, x, *weights.gate);
  const std::vector<double> up = ref_product(m, x, *weights.up);
  std::vector<float> hidden(gate.size());  // [M, F]
  for (std::size_t i = 0; i < gate.size(); ++i) {
    hidden[i] = static_cast<float>(gate[i] / (1.0 + exp_f64(-gate[i])) * up[i]);
  }
  matmul(ws, rows, hidden.data(), *weights.down, out);
}

void RefBackend::add(Workspace&, std::int64_t count, float* x, const float* y) const {
  for (std::int64_t i = 0; i < count; ++i) x[i] += y[i];
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
