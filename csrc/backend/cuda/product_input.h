// What products are made of: weights that share an input, and that input in the forms they want.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/cuda_backend.h"

namespace specdec::cuda {

struct Product {
  const Weight* weight;  // [N, K] or [X, N, K], a DeviceWeight
  float* out;            // [columns, N]
};

// The input of products, the rows of x [rows, K] that the columns take: as int8, or arranged as
// float weights lie; made when first needed.
class ProductInput {
 public:
  // Takes what the operation before has left of x. uploads: CudaBackend's count of them
  ProductInput(CudaWorkspace& ws, const Columns& columns, const float* x, std::uint64_t uploads);
  // For quantised weights alone.
  ProductInput(CudaWorkspace& ws, const Columns& columns, const ActivationView& x);

  // outs = x W^T. Neighbours of one type go in one launch; all have the same K.
  void multiply(std::span<const Product> products);

 private:
  const ActivationView& quantized(std::size_t cols);
  const float* arranged(std::size_t cols, int per_lane);

  CudaWorkspace& ws_;
  Columns columns_;
  const float* x_ = nullptr;
  ActivationView quantized_;
  int per_lane_ = 0;  // of arranged_
  const float* arranged_ = nullptr;
};

}  // namespace specdec::cuda
