#include "gguf/importance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/dequantize.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/printable.h"
#include "gguf/cursor.h"
#include "gguf/reader.h"

namespace specdec {
namespace {

using gguf::Cursor;
using gguf::Field;

constexpr std::string_view kSums = ".in_sum2";
constexpr std::string_view kCounts = ".counts";

bool is_gguf(const std::string& path) {
  const MappedFile file(path);
  return file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0;
}

std::vector<float> values_of(const GgufFile& file, const std::string& name) {
  const TensorView view = file.view(name);
  if (view.dtype != DType::kF32) {
    throw GgufError(str(printable(file.path()), ": tensor ", quoted(name), " has type ",
                        dtype_info(view.dtype).name, ", expected F32"));
  }
  std::vector<float> values(view.rows() * view.cols());
  dequantize_row(view.dtype, view.data, values.data(), values.size());
  return values;
}

// A number of things that follow; at least 1.
std::size_t read_count(Cursor& cursor, const Field& field) {
  const std::size_t offset = cursor.position();
  const auto count = cursor.read<std::int32_t>(field);
  if (count < 1) {
    cursor.fail(offset, field,
                str("it is ", count, ", expected at least 1: this is no file of llama-imatrix"));
  }
  return static_cast<std::size_t>(count);
}

std::string read_text(Cursor& cursor, const Field& field) {
  const std::size_t offset = cursor.position();
  const std::size_t length = read_count(cursor, field);
  cursor.require_count(length, 1, offset, field);
  std::string text(reinterpret_cast<const char*>(cursor.here()), length);
  cursor.skip(length, field);
  return text;
}

}  // namespace

ImportanceFile::ImportanceFile(const std::string& path) : path_(path) {
  is_gguf(path) ? read_gguf(path) : read_legacy(path);
  if (entries_.empty()) {
    throw GgufError(str(printable(path), ": there are no importance weights in it (tensors *",
                        kSums, " and *", kCounts, "): make it with llama-imatrix"));
  }
}

void ImportanceFile::read_gguf(const std::string& path) {
  const auto file = GgufFile::open(path);
  for (const TensorInfo& info : file->tensors()) {
    if (!info.name.ends_with(kSums)) continue;
    const std::string name = info.name.substr(0, info.name.size() - kSums.size());
    add(name, values_of(*file, info.name), values_of(*file, name + std::string(kCounts)));
  }
  const Metadata& metadata = file->metadata();
  chunks_ = static_cast<std::uint32_t>(
      metadata.find_uint("imatrix.chunk_count", 0xffffffffu).value_or(0));
  if (const auto names = metadata.find_string_array("imatrix.datasets")) {
    datasets_.assign(names->begin(), names->end());
  }
}

// i32 entries; each: i32 length and name, i32 calls, i32 values, f32 sums. Then, in newer ones: i32
// chunks, i32 length and name of the text.
void ImportanceFile::read_legacy(const std::string& path) {
  const MappedFile file(path);
  Cursor cursor(file.data(), file.size(), file.path());
  const std::size_t entries = read_count(cursor, {"number of entries"});
  constexpr std::size_t kLeastEntryBytes = 4 + 1 + 4 + 4 + 4;
  cursor.require_count(entries, kLeastEntryBytes, 0, {"number of entries"});
  for (std::size_t i = 0; i < entries; ++i) {
    const std::string name = read_text(cursor, {"length of a name"});
    const auto calls = cursor.read<std::int32_t>({"calls of", name});
    const std::size_t offset = cursor.position();
    const std::size_t count = read_count(cursor, {"number of values of", name});
    cursor.require_count(count, sizeof(float), offset, {"number of values of", name});
    std::vector<float> sums(count);
    std::memcpy(sums.data(), cursor.here(), count * sizeof(float));
    cursor.skip(count * sizeof(float), {"values of", name});
    // Without calls the sums are means already.
    add(name, std::move(sums), {static_cast<float>(calls > 0 ? calls : 1)});
  }
  if (cursor.left() < 2 * sizeof(std::int32_t)) return;
  const auto chunks = cursor.read<std::int32_t>({"number of chunks"});
  chunks_ = static_cast<std::uint32_t>(std::max(chunks, 0));
  if (gguf::load<std::int32_t>(cursor.here()) <= 0) return;  // a text without a name
  datasets_.push_back(read_text(cursor, {"length of the name of the text"}));
}

// sums [matrices, K], counts [matrices]
void ImportanceFile::add(const std::string& name, std::vector<float> sums,
                         const std::vector<float>& counts) {
  if (counts.empty() || sums.size() % counts.size() != 0) {
    throw GgufError(str(printable(path_), ": entry ", quoted(name), " has ", sums.size(),
                        " sums and ", counts.size(), " counts, which do not fit together"));
  }
  const std::size_t cols = sums.size() / counts.size();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const float count = counts[i / cols];
    if (!std::isfinite(sums[i]) || sums[i] < 0 || !std::isfinite(count)) {
      throw GgufError(str(printable(path_), ": entry ", quoted(name), ": sum ", i, " is ", sums[i],
                          " with a count of ", count, "; sums of squares are expected"));
    }
    // An expert that no token was sent to: nothing is known of it.
    sums[i] = count > 0 ? sums[i] / count : 1.0f;
  }
  if (!entries_.emplace(name, std::move(sums)).second) {
    throw GgufError(str(printable(path_), ": entry ", quoted(name), " appears twice"));
  }
}

const std::vector<float>* ImportanceFile::find(const std::string& name, std::size_t matrices,
                                               std::size_t cols) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  if (found->second.size() != matrices * cols) {
    throw GgufError(str(printable(path_), ": entry ", quoted(name), " has ", found->second.size(),
                        " weights, but the tensor has ", matrices, " x ", cols,
                        " columns: it was made for another model"));
  }
  return &found->second;
}

}  // namespace specdec
