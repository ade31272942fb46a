#include "model/tensor_loader.h"

#include <utility>

#include "core/dequantize.h"
#include "core/error.h"

namespace specdec {

TensorLoader::TensorLoader(const GgufFile& file, const Backend& backend,
                           const LoadProgress& progress)
    : file_(file), backend_(&backend), progress_(progress) {
  for (const TensorInfo& info : file.tensors()) total_bytes_ += info.bytes;
}

void TensorLoader::report(std::size_t bytes) {
  loaded_bytes_ += bytes;
  if (progress_) progress_(static_cast<double>(loaded_bytes_) / static_cast<double>(total_bytes_));
}

std::unique_ptr<Weight> TensorLoader::load(const TensorView& view, WeightUse use) {
  auto weight = backend_->load_weight(view, use);
  report(view.bytes);
  return weight;
}

std::unique_ptr<Weight> TensorLoader::matrix(const std::string& name, WeightUse use) {
  return load(file_.view(name), use);
}

std::unique_ptr<Weight> TensorLoader::rows(const std::string& name, RowRange range) {
  return load(file_.view(name).slice(range.first, range.count), WeightUse::kProducts);
}

std::vector<float> TensorLoader::floats(const TensorView& view) {
  std::vector<float> values(view.rows() * view.cols());
  dequantize_row(view.dtype, view.data, values.data(), values.size());
  report(view.bytes);
  return values;
}

std::unique_ptr<Buffer> TensorLoader::load_floats(const TensorView& view) {
  const std::vector<float> values = floats(view);
  const std::size_t bytes = values.size() * sizeof(float);
  auto buffer = backend_->allocate(bytes);
  backend_->upload(buffer->data(), values.data(), bytes);
  return buffer;
}

std::unique_ptr<Buffer> TensorLoader::vector(const std::string& name) {
  return load_floats(file_.view(name));
}

std::unique_ptr<Buffer> TensorLoader::optional_vector(const std::string& name) {
  return has(name) ? vector(name) : nullptr;
}

std::unique_ptr<Buffer> TensorLoader::elements(const std::string& name, RowRange range) {
  return load_floats(file_.view(name).slice(range.first, range.count));
}

std::vector<float> TensorLoader::factors(const std::string& name) {
  if (!has(name)) return {};
  std::vector<float> factors = floats(file_.view(name));
  for (const float factor : factors) {
    if (!(factor > 0.0f)) {
      throw GgufError(str("tensor ", name, " holds ", factor, "; factors must be positive"));
    }
  }
  return factors;
}

ModelRope::Factors TensorLoader::frequency_factors() {
  ModelRope::Factors found{factors("rope_freqs.weight"), factors("rope_factors_long.weight")};
  std::vector<float> shorter = factors("rope_factors_short.weight");
  if (shorter.empty() != found.long_context.empty()) {
    throw GgufError(
        "of the tensors 'rope_factors_short.weight' and 'rope_factors_long.weight' only one is "
        "there: the file is incomplete");
  }
  if (!shorter.empty()) found.usual = std::move(shorter);
  return found;
}

}  // namespace specdec
