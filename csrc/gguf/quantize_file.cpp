#include "gguf/quantize_file.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/output_file.h"
#include "core/printable.h"
#include "core/tensor.h"
#include "gguf/importance.h"
#include "gguf/reader.h"
#include "gguf/recipe.h"
#include "gguf/row_converter.h"
#include "gguf/writer.h"

namespace specdec {
namespace {

// Values between two writes: small enough for smooth progress and little memory.
constexpr std::size_t kChunkValues = std::size_t{1} << 22;
constexpr std::uint32_t kQuantizationVersion = 2;

void require_other_files(const std::vector<std::string>& in, const std::vector<std::string>& out) {
  for (const std::string& from : in) {
    for (const std::string& to : out) {
      if (!is_same_file(from, to)) continue;
      throw InvalidArgument(str("output ", quoted(to, 4096), " is the input file"));
    }
  }
}

QuantizedTensor plan_tensor(const GgufFile& file, const TensorInfo& info, const Recipe& recipe,
                            const RecipeFacts& facts, bool pure) {
  QuantizedTensor tensor;
  tensor.name = info.name;
  tensor.from = tensor.to = info.type_number;
  tensor.elements = info.elements;
  tensor.bytes_before = tensor.bytes_after = info.bytes;
  if (!info.dtype && info.bytes > 0) return tensor;  // whole numbers: copied
  const TensorView view = file.view(info.name);      // throws for an unknown type
  const TypeChoice choice = recipe_type(recipe, facts, info.name, info.shape, pure);
  tensor.to = static_cast<std::uint32_t>(choice.type);
  tensor.fallback = choice.fallback;
  tensor.bytes_after = view.rows() * row_bytes(choice.type, view.cols());
  return tensor;
}

bool uses_weights(const QuantizedTensor& tensor) {
  if (tensor.from == tensor.to) return false;
  const DType to = static_cast<DType>(tensor.to);
  return dtype_info(to).block_size > 1 && to != DType::kQ8_0;
}

// The importance weights of a tensor; nullptr where there are none or its type ignores them.
const std::vector<float>* weights_of(const std::optional<ImportanceFile>& importance,
                                     const TensorInfo& info, const QuantizedTensor& tensor) {
  if (!importance || !uses_weights(tensor)) return nullptr;
  const std::size_t cols = info.shape.back();
  const std::size_t rows = info.shape[info.shape.size() - 2];
  return importance->find(info.name, info.elements / rows / cols, cols);
}

void tell_importance(const ImportanceFile& importance, MetadataWriter& metadata) {
  metadata.set_string("quantize.imatrix.file", importance.path());
  if (!importance.datasets().empty()) {
    metadata.set_string("quantize.imatrix.dataset", importance.datasets().front());
  }
  metadata.set_u32("quantize.imatrix.entries_count", static_cast<std::uint32_t>(importance.size()));
  if (importance.chunks() > 0) {
    metadata.set_u32("quantize.imatrix.chunks_count", importance.chunks());
  }
}

// Converts one tensor after the other; the buffers live as long.
class Converter {
 public:
  Converter(const GgufFile& file, GgufWriter& writer, int threads, const QuantizeProgress& progress)
      : file_(file), writer_(writer), rows_(threads), progress_(progress) {
    for (const TensorInfo& info : file.tensors()) total_ += info.elements;
  }

  // weights [matrices, K]; nullptr: all equal.
  void convert(const TensorInfo& info, const QuantizedTensor& tensor,
               const std::vector<float>* weights) {
    if (tensor.from == tensor.to) {
      writer_.write(file_.data(info), info.bytes);
      report(tensor.elements);
      return;
    }
    const TensorView view = file_.view(info.name);
    const std::string where = str(printable(file_.path_of(info)), ": tensor ", quoted(info.name));
    const DType to = static_cast<DType>(tensor.to);
    const std::size_t chunk = std::max<std::size_t>(1, kChunkValues / view.cols());
    for (std::size_t row = 0; row < view.rows(); row += chunk) {
      const std::size_t count = std::min(chunk, view.rows() - row);
      out_.resize(count * row_bytes(to, view.cols()));
      rows_.convert(view, to, row, count, out_.data(), where,
                    weights == nullptr ? nullptr : weights->data());
      writer_.write(out_.data(), out_.size());
      report(count * view.cols());
    }
  }

 private:
  void report(std::size_t values) {
    done_ += values;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
  }

  const GgufFile& file_;
  GgufWriter& writer_;
  RowConverter rows_;
  const QuantizeProgress& progress_;
  std::vector<std::byte> out_;
  std::size_t done_ = 0, total_ = 0;
};

}  // namespace

QuantizeResult quantize_file(const std::string& in, const std::string& out,
                             const QuantizeOptions& options, const QuantizeProgress& progress) {
  const Recipe& recipe = find_recipe(options.recipe);
  const std::shared_ptr<const GgufFile> file = GgufFile::open(in);
  std::optional<ImportanceFile> importance;
  if (!options.importance.empty()) importance.emplace(options.importance);
  RecipeFacts facts = recipe_facts(*file);
  facts.has_weights = importance.has_value();
  QuantizeResult result;
  std::vector<TensorPlan> directory;
  for (const TensorInfo& info : file->tensors()) {
    QuantizedTensor tensor = plan_tensor(*file, info, recipe, facts, options.pure);
    tensor.unweighted =
        importance && uses_weights(tensor) && weights_of(importance, info, tensor) == nullptr;
    directory.push_back({tensor.name, tensor.to, info.shape, tensor.bytes_after});
    result.tensors.push_back(std::move(tensor));
  }
  MetadataWriter metadata;
  metadata.copy(file->metadata());
  metadata.set_u32("general.file_type", recipe.file_type);
  metadata.set_u32("general.quantization_version", kQuantizationVersion);
  if (importance) tell_importance(*importance, metadata);

  GgufWriter writer(out, std::move(metadata), std::move(directory), file->alignment(),
                    options.max_bytes);
  result.paths = writer.paths();
  require_other_files(file->paths(), result.paths);
  Converter converter(*file, writer, options.threads, progress);
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    const TensorInfo& info = file->tensors()[i];
    converter.convert(info, result.tensors[i], weights_of(importance, info, result.tensors[i]));
  }
  result.bytes_before = file->file_size();
  result.bytes_after = writer.finish();
  return result;
}

}  // namespace specdec
