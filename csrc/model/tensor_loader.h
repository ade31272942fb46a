// Turns the tensors of a file, whose shapes are checked by now, into weights of a backend.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"

namespace specdec {

// Called with the share of the weights that is loaded, in [0, 1]. May throw to give up.
using LoadProgress = std::function<void(double)>;

class TensorLoader {
 public:
  // All must outlive this object.
  TensorLoader(const GgufFile& file, const Backend& backend, const LoadProgress& progress);

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  // [N, K]
  std::unique_ptr<Weight> matrix(const std::string& name, WeightUse use = WeightUse::kProducts);
  // [K], in host memory
  std::vector<float> floats(const std::string& name);
  // [K]
  std::unique_ptr<Buffer> vector(const std::string& name);
  // `rope_freqs.weight`, the frequency divisors of Llama 3 scaling [rope dims / 2]; empty if
  // absent.
  std::vector<float> frequency_factors();

 private:
  void report(std::size_t bytes);

  const GgufFile& file_;
  const Backend& backend_;
  const LoadProgress& progress_;
  std::size_t loaded_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace specdec
