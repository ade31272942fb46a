#include "gguf/row_converter.h"

#include <algorithm>
#include <cmath>

#include "core/dequantize.h"
#include "core/error.h"
#include "gguf/quantize/quantize_row.h"

namespace specdec {
namespace {

// Values of a task: few enough to keep every thread busy.
constexpr std::size_t kTaskValues = std::size_t{1} << 15;

// Smallest magnitude that rounds to an infinity in F16.
constexpr float kBeyondHalf = 65520.0f;

void require_storable(const float* values, std::size_t n, DType to, std::size_t row,
                      const std::string& where) {
  const std::size_t bad = first_not_finite(values, n);
  if (bad < n) {
    throw GgufError(str(where, ": value ", bad, " of row ", row, " is ", values[bad],
                        ", which no type can hold: the file is damaged or badly converted"));
  }
  if (to != DType::kF16) return;
  for (std::size_t i = 0; i < n; ++i) {
    if (std::fabs(values[i]) < kBeyondHalf) continue;
    throw GgufError(str(where, ": value ", i, " of row ", row, " is ", values[i],
                        ", beyond the 65504 that F16 can hold: use bf16, f32 or q8_0"));
  }
}

}  // namespace

void RowConverter::convert(const TensorView& view, DType to, std::size_t first, std::size_t count,
                           std::byte* out, const std::string& where, const float* weights) {
  const std::size_t cols = view.cols();
  const std::size_t matrix_rows = view.shape.size() < 2 ? 1 : view.shape[view.shape.size() - 2];
  const std::size_t before = row_bytes(view.dtype, cols), after = row_bytes(to, cols);
  const std::size_t per_task = std::max<std::size_t>(1, kTaskValues / cols);
  values_.resize(static_cast<std::size_t>(pool_.threads()) * cols);
  pool_.parallel_for((count + per_task - 1) / per_task, [&](std::size_t task, int slot) {
    float* values = values_.data() + static_cast<std::size_t>(slot) * cols;
    const std::size_t end = std::min(count, (task + 1) * per_task);
    for (std::size_t i = task * per_task; i < end; ++i) {
      dequantize_row(view.dtype, view.data + (first + i) * before, values, cols);
      require_storable(values, cols, to, first + i, where);
      const std::size_t matrix = (first + i) / matrix_rows;
      quantize_row(to, values, out + i * after, cols,
                   weights == nullptr ? nullptr : weights + matrix * cols);
    }
  });
}

}  // namespace specdec
