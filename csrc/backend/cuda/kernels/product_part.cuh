// Which of a launch's weights, and which columns, a thread block works on.
#pragma once

#include "backend/cuda/device_code.h"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/launch.h"

namespace specdec::cuda {

// A matrix, and which of its thread blocks this is.
template <class View>
struct ProductPart {
  View weight;
  float* out;
  int block;
};

// Thread blocks of a weight of `rows` rows.
SPECDEC_HD constexpr int row_blocks(int rows, int rows_per_block) {
  return (rows + rows_per_block - 1) / rows_per_block;
}

// matrix: of each weight's stack
template <class View>
__device__ __forceinline__ ProductPart<View> find_part(const Products<View>& all, int matrix,
                                                       int block, int rows_per_block) {
  ProductPart<View> part = {all.weights[0], all.outs[0], block};
  int at = 0;
#pragma unroll
  for (int i = 1; i < Products<View>::kMost; ++i) {
    const int before = row_blocks(all.weights[i - 1].rows, rows_per_block);
    if (at == i - 1 && i < all.count && part.block >= before) {
      part = {all.weights[i], all.outs[i], part.block - before};
      at = i;
    }
  }
  part.weight = part.weight.matrix(matrix);
  return part;
}

// Thread blocks of all weights.
template <class View>
unsigned total_blocks(const Products<View>& all, int rows_per_block) {
  unsigned blocks = 0;
  for (int i = 0; i < all.count; ++i) {
    blocks += static_cast<unsigned>(row_blocks(all.weights[i].rows, rows_per_block));
  }
  return blocks;
}

}  // namespace specdec::cuda
