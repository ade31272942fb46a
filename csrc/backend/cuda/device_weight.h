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
  std::size_t matrices() const override { return matrices_; }
  std::size_t rows() const override { return rows_; }
  std::size_t cols() const override { return cols_; }
  // Of the device's memory: a table for look-ups takes none.
  std::size_t bytes() const override { return memory_.bytes(); }

  // Of a quantised type, or of a float type. Loaded for look-ups it is host memory.
  QuantizedView quantized() const;
  FloatView floats() const;

 private:
  void pack_quantized(const std::byte* source);
  void pack_floats(const std::byte* source);
  void arrange_row(const std::byte* row, std::uint8_t* out) const;
  void reserve(std::size_t bytes);
  void write(std::size_t at, const std::vector<std::uint8_t>& bytes);
  const std::uint8_t* base() const;

  DType dtype_;
  WeightUse use_;
  std::size_t matrices_, rows_, cols_, row_bytes_;  // X, N, K; row_bytes: of the file
  DeviceMemory memory_;                             // [X, stride_] of a weight for products
  PinnedMemory host_;  // of one for look-ups: a pass reads a few rows of it
  std::size_t stride_ = 0;
  std::size_t scales_at_ = 0, headers_at_ = 0;  // offsets of the regions in a matrix
};

inline const DeviceWeight& as_device(const Weight& weight) {
  return static_cast<const DeviceWeight&>(weight);
}

}  // namespace specdec::cuda
