// Rows of a tensor into another type, on several threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace specdec {

class RowConverter {
 public:
  // threads <= 0: one per physical core.
  explicit RowConverter(int threads) : pool_(threads) {}

  // Rows [first, first + count) of `view` as `to`. out: count * row_bytes(to, K) bytes. weights
  // [matrices, K] as for quantize_row, the first dimension being that of a tensor of three;
  // nullptr: all equal. Throws GgufError that starts with `where` for a NaN or an infinity, and for
  // a value beyond the range of F16 where that is asked.
  void convert(const TensorView& view, DType to, std::size_t first, std::size_t count,
               std::byte* out, const std::string& where, const float* weights = nullptr);

 private:
  ThreadPool pool_;
  std::vector<float> values_;  // a row per thread
};

}  // namespace specdec
