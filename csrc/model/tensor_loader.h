// Turns the tensors of a file, whose shapes are checked by now, into weights of a backend.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/rope.h"

namespace specdec {

// Called with the share of the weights that is loaded, in [0, 1]. May throw to give up.
using LoadProgress = std::function<void(double)>;

// Rows of a matrix, or elements of a vector.
struct RowRange {
  std::size_t first = 0, count = 0;
};

class TensorLoader {
 public:
  // All must outlive this object.
  TensorLoader(const GgufFile& file, const Backend& backend, const LoadProgress& progress);

  // Where the next tensors go.
  void load_on(const Backend& backend) { backend_ = &backend; }

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  // [N, K], or a stack [X, N, K]
  std::unique_ptr<Weight> matrix(const std::string& name, WeightUse use = WeightUse::kProducts);
  // Some rows of a matrix, as a matrix of its own.
  std::unique_ptr<Weight> rows(const std::string& name, RowRange range);
  // A vector [K], or a matrix's values row by row.
  std::unique_ptr<Buffer> vector(const std::string& name);
  // Null if absent.
  std::unique_ptr<Buffer> optional_vector(const std::string& name);
  // Some elements of a vector.
  std::unique_ptr<Buffer> elements(const std::string& name, RowRange range);
  // The divisors of rotary frequencies that the file has: of Llama 3 scaling (`rope_freqs`), or of
  // long-rope (`rope_factors_short`, `rope_factors_long`).
  ModelRope::Factors frequency_factors();

 private:
  std::unique_ptr<Weight> load(const TensorView& view, WeightUse use);
  std::unique_ptr<Buffer> load_floats(const TensorView& view);
  // In host memory.
  std::vector<float> floats(const TensorView& view);
  // Positive factors; empty if absent.
  std::vector<float> factors(const std::string& name);
  void report(std::size_t bytes);

  const GgufFile& file_;
  const Backend* backend_;
  const LoadProgress& progress_;
  std::size_t loaded_bytes_ = 0, total_bytes_ = 0;
};

}  // namespace specdec
