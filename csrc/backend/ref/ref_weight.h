// The ref backend's weight: the tensor as it lies in the file, and its decoding row by row.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/dequantize.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec {

class RefWeight final : public Weight {
 public:
  explicit RefWeight(TensorView source) : source_(std::move(source)) {
    row_bytes_ = row_bytes(source_.dtype, source_.cols());
    SPECDEC_CHECK(source_.bytes >= row_bytes_ * source_.rows(), source_.name, " has ",
                  source_.bytes, " bytes for ", source_.rows(), " rows of ", row_bytes_);
  }

  DType dtype() const override { return source_.dtype; }
  std::size_t matrices() const override { return source_.matrices(); }
  std::size_t rows() const override { return source_.rows() / source_.matrices(); }
  std::size_t cols() const override { return source_.cols(); }
  std::size_t bytes() const override { return 0; }

  // Row of the whole stack; out [K]
  void decode_row(std::size_t row, float* out) const {
    dequantize_row(source_.dtype, source_.data + row * row_bytes_, out, source_.cols());
  }

 private:
  TensorView source_;  // [N, K]
  std::size_t row_bytes_ = 0;
};

inline const RefWeight& as_ref(const Weight& weight) {
  return static_cast<const RefWeight&>(weight);
}

// x W^T, kept in double for operations that go on computing, W being one matrix of the stack.
// x [M, K], result [M, N]
std::vector<double> ref_product(std::size_t rows, const float* x, const Weight& weight,
                                std::size_t matrix = 0);

// The same with bias [N] added, unless that is null.
std::vector<double> ref_product(std::size_t rows, const float* x, const Weight& weight,
                                const float* bias, std::size_t matrix = 0);

inline double ref_tanh(double x) { return 1.0 - 2.0 / (exp_f64(2.0 * x) + 1.0); }

// cap * tanh(x / cap)
inline double ref_soft_cap(double x, double cap) { return cap * ref_tanh(x / cap); }

}  // namespace specdec
