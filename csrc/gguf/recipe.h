// Named recipes, such as "q4_k_m", and the type that a tensor gets under one. The recipes are those
// that users of the format know: which tensors get more bits than the rest, and the number that
// general.file_type takes, follow llama.cpp (src/llama-quant.cpp, llama_tensor_get_type). Whoever
// writes a file, from a GGUF or from a checkpoint, asks here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace specdec {

class GgufFile;

struct Recipe {
  std::string_view name;    // "q4_k_m"
  DType base;               // of the tensors that no rule names
  std::uint32_t file_type;  // value of general.file_type
};

// What the rules ask about the model.
struct RecipeFacts {
  std::string architecture;
  int layers = 1;            // blocks, at least 1
  int experts = 0;           // of a layer; 0 in dense models
  int heads_per_kv = 1;      // query heads for each key/value head, of the first layer
  bool tied_output = false;  // the embedding is also the output matrix
  bool has_weights = false;  // importance weights are given
};

RecipeFacts recipe_facts(const GgufFile& file);

struct TypeChoice {
  DType type;
  bool fallback;  // its rows are no whole blocks of the type meant for it
};

// All recipes, in the order of the list that users see.
std::span<const Recipe> recipes();

// "q4_k_m" for "Q4_K_M"; the usual short forms "q3_k", "q4_k" and "q5_k" are those that end in _m.
// Throws InvalidArgument listing the names.
const Recipe& find_recipe(std::string_view name);

// Whether a tensor is one of those that recipes are about: matrices of weights, also stacked by
// experts, but not routers and other small ones that decide too much. All others stay float32.
// shape: outermost first; a dimension of 1 in front does not make a matrix.
bool is_weight_matrix(std::string_view name, const std::vector<std::size_t>& shape);

// The type of a tensor; F32 where it is no weight matrix. pure: every matrix gets the recipe's base
// type.
TypeChoice recipe_type(const Recipe& recipe, const RecipeFacts& facts, std::string_view name,
                       const std::vector<std::size_t>& shape, bool pure = false);

// The type for rows of `cols` values where `type` is asked: itself, or the nearest simple type
// where its blocks do not divide the row, or F16 where nothing does.
DType type_for_rows(DType type, std::size_t cols);

}  // namespace specdec
