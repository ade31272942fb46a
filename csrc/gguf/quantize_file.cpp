#include "gguf/quantize_file.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "core/dequantize.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/printable.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "gguf/quantize/quantize_row.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace specdec {
namespace {

// Values of a task and of a chunk between two writes: small enough for smooth progress and little
// memory, large enough to keep every thread busy.
constexpr std::size_t kTaskValues = std::size_t{1} << 15;
constexpr std::size_t kChunkValues = std::size_t{1} << 22;

struct TypeFacts {
  DType dtype;
  std::uint32_t file_type;  // the format's number of a file that is mostly of this type
  DType fallback;           // for rows that its blocks do not divide
};

constexpr TypeFacts kTypes[] = {
    {DType::kF32, 0, DType::kF32},        {DType::kF16, 1, DType::kF16},
    {DType::kBF16, 32, DType::kBF16},     {DType::kQ4_0, 2, DType::kF16},
    {DType::kQ4_1, 3, DType::kF16},       {DType::kQ5_0, 8, DType::kF16},
    {DType::kQ5_1, 9, DType::kF16},       {DType::kQ8_0, 7, DType::kF16},
    {DType::kQ2_K, 10, DType::kQ4_0},     {DType::kQ3_K, 11, DType::kQ4_0},
    {DType::kQ4_K, 14, DType::kQ5_0},     {DType::kQ5_K, 16, DType::kQ5_1},
    {DType::kQ6_K, 18, DType::kQ8_0},     {DType::kIQ4_NL, 25, DType::kF16},
    {DType::kIQ4_XS, 30, DType::kIQ4_NL}, {DType::kMXFP4, 38, DType::kF16},
};
constexpr std::uint32_t kQuantizationVersion = 2;

const TypeFacts& facts_of(DType dtype) {
  for (const TypeFacts& facts : kTypes) {
    if (facts.dtype == dtype) return facts;
  }
  throw InvalidArgument(str("this library cannot write ", dtype_info(dtype).name));
}

// Matrices of weights. The router of a mixture of experts is small and decides too much.
bool is_weight_matrix(const TensorInfo& info) {
  const std::string_view name = info.name;
  return info.shape.size() >= 2 && name.ends_with(".weight") &&
         name.find("ffn_gate_inp") == std::string_view::npos;
}

void require_whole_model(const GgufFile& file) {
  const auto parts = file.metadata().find_uint("split.count");
  if (parts && *parts > 1) {
    throw GgufError(str(printable(file.path()), ": this is one of ", *parts,
                        " parts of a split model: merge them first (gguf-split --merge)"));
  }
}

std::vector<QuantizedTensor> plan_tensors(const GgufFile& file, DType type) {
  std::vector<QuantizedTensor> plan;
  for (const TensorInfo& info : file.tensors()) {
    const TensorView view = file.view(info.name);  // throws for an unknown type
    QuantizedTensor tensor;
    tensor.name = info.name;
    tensor.from = view.dtype;
    tensor.elements = info.elements;
    tensor.bytes_before = view.bytes;
    if (is_weight_matrix(info)) {
      tensor.to = type_for_rows(type, view.cols());
      tensor.fallback = tensor.to != type;
    }
    tensor.bytes_after = view.rows() * row_bytes(tensor.to, view.cols());
    plan.push_back(std::move(tensor));
  }
  return plan;
}

// Converts one tensor after the other; the buffers live as long.
class Converter {
 public:
  Converter(const GgufFile& file, GgufWriter& writer, int threads, const QuantizeProgress& progress)
      : file_(file), writer_(writer), pool_(threads), progress_(progress) {
    for (const TensorInfo& info : file.tensors()) total_ += info.elements;
  }

  void convert(const QuantizedTensor& tensor) {
    const TensorView view = file_.view(tensor.name);
    if (tensor.from == tensor.to) {
      writer_.write(view.data, view.bytes);
      report(tensor.elements);
      return;
    }
    const std::size_t rows = std::max<std::size_t>(1, kChunkValues / view.cols());
    for (std::size_t row = 0; row < view.rows(); row += rows) {
      convert_rows(view, tensor.to, row, std::min(rows, view.rows() - row));
    }
  }

 private:
  void convert_rows(const TensorView& view, DType to, std::size_t first, std::size_t count) {
    const std::size_t cols = view.cols();
    const std::size_t before = row_bytes(view.dtype, cols), after = row_bytes(to, cols);
    const std::size_t per_task = std::max<std::size_t>(1, kTaskValues / cols);
    const std::size_t tasks = (count + per_task - 1) / per_task;
    out_.resize(count * after);
    values_.resize(static_cast<std::size_t>(pool_.threads()) * cols);
    pool_.parallel_for(tasks, [&](std::size_t task, int slot) {
      float* values = values_.data() + static_cast<std::size_t>(slot) * cols;
      const std::size_t end = std::min(count, (task + 1) * per_task);
      for (std::size_t i = task * per_task; i < end; ++i) {
        dequantize_row(view.dtype, view.data + (first + i) * before, values, cols);
        require_finite(view, values, first + i);
        quantize_row(to, values, out_.data() + i * after, cols);
      }
    });
    writer_.write(out_.data(), out_.size());
    report(count * cols);
  }

  void require_finite(const TensorView& view, const float* values, std::size_t row) const {
    const std::size_t bad = first_not_finite(values, view.cols());
    if (bad == view.cols()) return;
    throw GgufError(str(printable(file_.path()), ": tensor ", quoted(view.name), ": value ", bad,
                        " of row ", row, " is ", values[bad],
                        ", which no type can hold: the file is damaged or badly converted"));
  }

  void report(std::size_t values) {
    done_ += values;
    if (progress_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
  }

  const GgufFile& file_;
  GgufWriter& writer_;
  ThreadPool pool_;
  const QuantizeProgress& progress_;
  std::vector<float> values_;  // a row per thread
  std::vector<std::byte> out_;
  std::size_t done_ = 0, total_ = 0;
};

}  // namespace

DType parse_quantize_type(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  std::string known;
  for (const TypeFacts& facts : kTypes) {
    if (dtype == facts.dtype) return facts.dtype;
    known += known.empty() ? "" : ", ";
    for (const char c : dtype_info(facts.dtype).name) {
      known += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  throw InvalidArgument(str("unknown type ", quoted(name), "; known are ", known));
}

DType type_for_rows(DType type, std::size_t cols) {
  while (cols % dtype_info(type).block_size != 0) type = facts_of(type).fallback;
  return type;
}

QuantizeResult quantize_file(const std::string& in, const std::string& out, DType type, int threads,
                             const QuantizeProgress& progress) {
  const TypeFacts& facts = facts_of(type);
  const std::shared_ptr<const GgufFile> file = GgufFile::open(in);
  require_whole_model(*file);
  if (is_same_file(in, out)) {
    throw InvalidArgument(str("output ", quoted(out, 4096), " is the input file"));
  }
  QuantizeResult result;
  result.tensors = plan_tensors(*file, type);
  std::vector<TensorPlan> directory;
  for (std::size_t i = 0; i < result.tensors.size(); ++i) {
    const QuantizedTensor& tensor = result.tensors[i];
    directory.push_back({tensor.name, tensor.to, file->tensors()[i].shape});
  }
  MetadataWriter metadata;
  metadata.copy(file->metadata());
  metadata.set_u32("general.file_type", facts.file_type);
  metadata.set_u32("general.quantization_version", kQuantizationVersion);

  GgufWriter writer(out, metadata, std::move(directory), file->alignment());
  Converter converter(*file, writer, threads, progress);
  for (const QuantizedTensor& tensor : result.tensors) converter.convert(tensor);
  result.bytes_before = file->file_size();
  result.bytes_after = writer.finish();
  return result;
}

}  // namespace specdec
