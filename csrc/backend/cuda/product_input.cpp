#include "backend/cuda/product_input.h"

#include "backend/cuda/block_decode.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

void set_view(const DeviceWeight& weight, QuantizedView* view) { *view = weight.quantized(); }
void set_view(const DeviceWeight& weight, FloatView* view) { *view = weight.floats(); }

// Of weights of one type and one K.
template <class View>
Products<View> joined(std::span<const Product> products) {
  Products<View> all;
  for (const Product& product : products) {
    set_view(as_device(*product.weight), &all.weights[all.count]);
    all.outs[all.count++] = product.out;
  }
  return all;
}

// The first products that have one type: as many as a launch takes.
std::span<const Product> of_one_type(std::span<const Product> products) {
  std::size_t count = 1;
  while (count < products.size() && count < QuantizedProducts::kMost &&
         products[count].weight->dtype() == products[0].weight->dtype()) {
    ++count;
  }
  return products.first(count);
}

}  // namespace

ProductInput::ProductInput(CudaWorkspace& ws, const Columns& columns, const float* x,
                           std::uint64_t uploads)
    : ws_(ws), columns_(columns), x_(x) {
  const PreparedInput& prepared = ws.prepared();
  if (prepared.x == x && prepared.rows == columns.count && columns.sources == nullptr &&
      prepared.uploads == uploads) {
    quantized_ = prepared.view;
  }
}

ProductInput::ProductInput(CudaWorkspace& ws, const Columns& columns, const ActivationView& x)
    : ws_(ws), columns_(columns), quantized_(x) {}

void ProductInput::multiply(std::span<const Product> products) {
  while (!products.empty()) {
    const auto now = of_one_type(products);
    const DType dtype = now[0].weight->dtype();
    const std::size_t cols = now[0].weight->cols();
    if (!is_quantized(dtype)) {
      const int per_lane = values_per_lane(dtype_info(dtype).block_bytes);
      queue_multiply_float(ws_.stream(), dtype, joined<FloatView>(now), arranged(cols, per_lane),
                           columns_);
    } else if (columns_.most <= kFewColumns) {
      queue_multiply_few(ws_.stream(), dtype, joined<QuantizedView>(now), quantized(cols),
                         columns_);
    } else {
      queue_multiply_tensor(ws_.stream(), dtype, joined<QuantizedView>(now), quantized(cols),
                            columns_);
    }
    products = products.subspan(now.size());
  }
}

const ActivationView& ProductInput::quantized(std::size_t cols) {
  if (static_cast<std::size_t>(quantized_.blocks) * kBlockValues == cols) return quantized_;
  SPECDEC_CHECK(x_ != nullptr, "int8 activations of ", quantized_.blocks, " blocks for ", cols,
                " columns");
  quantized_ = ws_.activations(columns_.count, cols);
  queue_quantize(ws_.stream(), columns_, x_, quantized_);
  return quantized_;
}

const float* ProductInput::arranged(std::size_t cols, int per_lane) {
  if (per_lane_ == per_lane) return arranged_;
  SPECDEC_CHECK(x_ != nullptr, "int8 activations for float weights");
  const auto k = static_cast<int>(cols);
  const auto padded = static_cast<std::size_t>(runs_of(k, per_lane) * kVirtualLanes * per_lane);
  float* out = ws_.get<float>(Area::kArranged, static_cast<std::size_t>(columns_.count) * padded);
  queue_arrange(ws_.stream(), columns_, k, per_lane, x_, out);
  per_lane_ = per_lane;
  arranged_ = out;
  return out;
}

}  // namespace specdec::cuda
