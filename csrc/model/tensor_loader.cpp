#include "model/tensor_loader.h"

#include "core/dequantize.h"
#include "core/error.h"

namespace specdec {

TensorLoader::TensorLoader(const GgufFile& file, const Backend& backend,
                           const LoadProgress& progress)
    : file_(file), backend_(backend), progress_(progress) {
  for (const TensorInfo& info : file.tensors()) total_bytes_ += info.bytes;
}

void TensorLoader::report(std::size_t bytes) {
  loaded_bytes_ += bytes;
  if (progress_) progress_(static_cast<double>(loaded_bytes_) / static_cast<double>(total_bytes_));
}

std::unique_ptr<Weight> TensorLoader::matrix(const std::string& name, WeightUse use) {
  const TensorView view = file_.view(name);
  auto weight = backend_.load_weight(view, use);
  report(view.bytes);
  return weight;
}

std::vector<float> TensorLoader::floats(const std::string& name) {
  const TensorView view = file_.view(name);
  std::vector<float> values(view.shape[0]);
  dequantize_row(view.dtype, view.data, values.data(), values.size());
  report(view.bytes);
  return values;
}

std::unique_ptr<Buffer> TensorLoader::vector(const std::string& name) {
  const std::vector<float> values = floats(name);
  const std::size_t bytes = values.size() * sizeof(float);
  auto buffer = backend_.allocate(bytes);
  backend_.upload(buffer->data(), values.data(), bytes);
  return buffer;
}

std::vector<float> TensorLoader::frequency_factors() {
  const std::string name = "rope_freqs.weight";
  if (!has(name)) return {};
  std::vector<float> factors = floats(name);
  for (const float factor : factors) {
    if (!(factor > 0.0f)) {
      throw GgufError(str("tensor ", name, " holds ", factor, "; factors must be positive"));
    }
  }
  return factors;
}

}  // namespace specdec
