// A weight matrix on the device, repacked at load (weight_layout.h).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/weight_layout.h"

namespace specdec::cuda {

class DeviceWeight final : public Weight {
 public:
  DeviceWeight(const TensorView& source, WeightUse use);

  DType dtype() const override { return dtype_; }
  std::size_t rows() const override { return rows_; }
  std::size_t cols() const override { return cols_; }
  std::size_t bytes() const override { return memory_.bytes() + host_.bytes(); }

  // Of a quantised type, or of a float type. Loaded for look-ups it is host memory.
  QuantizedView quantized() const;
  FloatView floats() const;

 private:
  void pack_quantized(const std::byte* source);
  void pack_floats(const std::byte* source);
  void reserve(std::size_t bytes);
  void write(std::size_t at, const std::vector<std::uint8_t>& bytes);
  const std::uint8_t* base() const;

  DType dtype_;
  WeightUse use_;
  std::size_t rows_, cols_, row_bytes_;  // row_bytes: of the file
  DeviceMemory memory_;                  // of a weight for products
  PinnedMemory host_;                    // of one for look-ups: a pass reads a few rows of it
  std::size_t scales_at_ = 0, headers_at_ = 0;  // offsets of the regions
};

inline const DeviceWeight& as_device(const Weight& weight) {
  return static_cast<const DeviceWeight&>(weight);
}

// A stack of matrices [X, N, K], each on its own.
class DeviceWeightStack final : public Weight {
 public:
  explicit DeviceWeightStack(const TensorView& source);

  DType dtype() const override { return matrices_.front()->dtype(); }
  std::size_t matrices() const override { return matrices_.size(); }
  std::size_t rows() const override { return matrices_.front()->rows(); }
  std::size_t cols() const override { return matrices_.front()->cols(); }
  std::size_t bytes() const override;

  const DeviceWeight& matrix(std::size_t index) const { return *matrices_[index]; }

 private:
  std::vector<std::unique_ptr<DeviceWeight>> matrices_;  // [X]
};

// One matrix of a stack; a weight that is none has one.
inline const DeviceWeight& matrix_of(const Weight& weight, std::size_t index) {
  if (weight.matrices() == 1) return as_device(weight);
  return static_cast<const DeviceWeightStack&>(weight).matrix(index);
}

}  // namespace specdec::cuda
