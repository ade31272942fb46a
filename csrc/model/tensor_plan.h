// Which tensors a model of a given configuration consists of, and whether a file holds exactly
// these. Reads the directory only, so a file can be judged without loading it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gguf/reader.h"
#include "model/config.h"

namespace specdec {

struct ExpectedTensor {
  std::string name;
  std::vector<std::size_t> shape;  // outermost first
  bool optional = false;
};

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config);

// The same for any list: what it names must be there, and nothing else. `what`: "llama", for
// messages. `ignored`: may be there as well, whatever they hold.
void check_tensors(const std::vector<ExpectedTensor>& plan, const std::string& what,
                   const GgufFile& file, const std::vector<std::string>& ignored = {});

// Throws GgufError for a tensor that is missing, has another shape or a type this library cannot
// read, and for one that the forward pass would ignore (a bias, an expert): its result would be
// silently wrong.
void check_tensors(const ModelConfig& config, const GgufFile& file);

}  // namespace specdec
