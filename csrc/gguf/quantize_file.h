// A GGUF file with its weights in another type. The rule is plain: every weight matrix, the
// embedding and the output included, gets the asked type; what is not a matrix stays float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace specdec {

struct QuantizedTensor {
  std::string name;
  DType from = DType::kF32, to = DType::kF32;
  bool fallback = false;  // its rows are no whole blocks of the asked type
  std::size_t elements = 0;
  std::size_t bytes_before = 0, bytes_after = 0;
};

struct QuantizeResult {
  std::vector<QuantizedTensor> tensors;             // in file order
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of the files
};

// "Q4_K" for "q4_k". Throws InvalidArgument listing the types that quantize_file can write.
DType parse_quantize_type(const std::string& name);

// The type for rows of `cols` values where `type` is asked: itself, or the nearest simple type
// where its blocks do not divide the row, or F16 where nothing does.
DType type_for_rows(DType type, std::size_t cols);

// Called now and then from the calling thread with the fraction done; what it throws ends the work
// and leaves no output.
using QuantizeProgress = std::function<void(double)>;

// Reads any type that this library can decode. A tensor that already has its type is copied.
// threads <= 0: one per physical core. Throws GgufError for a bad input, naming the tensor (a NaN,
// an infinity, an unknown type, one part of a split model); OutputError; InvalidArgument where both
// paths name one file.
QuantizeResult quantize_file(const std::string& in, const std::string& out, DType type, int threads,
                             const QuantizeProgress& progress);

}  // namespace specdec
