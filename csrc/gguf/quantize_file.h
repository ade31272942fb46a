// A GGUF file with its weights in other types: those that a recipe (recipe.h) gives its tensors.
// What is not a matrix of weights becomes float32, or stays as it is where it holds whole numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace specdec {

struct QuantizedTensor {
  std::string name;
  std::uint32_t from = 0, to = 0;  // numbers of types in the format
  bool fallback = false;           // its rows are no whole blocks of the type meant for it
  bool unweighted = false;         // importance weights are given, but none for it
  std::size_t elements = 0;
  std::size_t bytes_before = 0, bytes_after = 0;
};

struct QuantizeResult {
  std::vector<std::string> paths;                   // of the files written
  std::vector<QuantizedTensor> tensors;             // in file order
  std::uint64_t bytes_before = 0, bytes_after = 0;  // of the files
};

struct QuantizeOptions {
  std::string recipe;
  bool pure = false;            // every matrix gets the recipe's base type
  int threads = 0;              // <= 0: one per physical core
  std::string importance;       // path of an ImportanceFile; empty: all columns count alike
  std::uint64_t max_bytes = 0;  // of a file, as GgufWriter takes it; 0: one file
};

// Called now and then from the calling thread with the fraction done; what it throws ends the work
// and leaves no output.
using QuantizeProgress = std::function<void(double)>;

// Reads any type that this library can decode, also split into several files. A tensor that already
// has its type is copied. Throws GgufError for a bad input, naming the tensor (a NaN, an infinity,
// a value beyond F16, an unknown type); OutputError; InvalidArgument for an unknown recipe and
// where the output is the input.
QuantizeResult quantize_file(const std::string& in, const std::string& out,
                             const QuantizeOptions& options, const QuantizeProgress& progress);

}  // namespace specdec
