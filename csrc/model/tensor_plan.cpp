#include "model/tensor_plan.h"

#include <string_view>
#include <unordered_set>

#include "core/error.h"
#include "core/printable.h"

namespace specdec {
namespace {

std::string shape_text(const std::vector<std::size_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

// Rotary angles that old converters stored: derived data, safe to ignore.
bool is_derived(std::string_view name) {
  return name.ends_with(".rot_embd") || name.ends_with("attn_rot_embd.weight");
}

void check_tensor(const ExpectedTensor& expected, const std::string& what, const GgufFile& file) {
  const TensorInfo* info = file.find_tensor(expected.name);
  if (info == nullptr) {
    if (expected.optional) return;
    throw GgufError(str("tensor ", quoted(expected.name),
                        " is missing: the file is incomplete or not a plain ", what, " model"));
  }
  if (info->shape != expected.shape) {
    throw GgufError(str("tensor ", quoted(info->name), " has shape ", shape_text(info->shape),
                        ", expected ", shape_text(expected.shape),
                        " from the metadata: the file is damaged or not a plain ", what, " model"));
  }
  file.view(expected.name);  // refuses a type this library cannot read
}

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const auto size = [](std::int32_t value) { return static_cast<std::size_t>(value); };
  const std::size_t width = size(config.width), ffn = size(config.ffn_width);
  const std::size_t queries = size(config.heads) * size(config.head_dim);
  const std::size_t keys = size(config.kv_heads) * size(config.head_dim);
  const std::size_t vocab = size(config.vocab_rows);
  std::vector<ExpectedTensor> plan = {
      {"token_embd.weight", {vocab, width}},
      {"output_norm.weight", {width}},
      {"output.weight", {vocab, width}, true},                    // absent: tied to the embedding
      {"rope_freqs.weight", {size(config.rope.dims) / 2}, true},  // Llama 3 scaling
  };
  for (std::int32_t i = 0; i < config.layers; ++i) {
    const std::string prefix = str("blk.", i, ".");
    plan.push_back({prefix + "attn_norm.weight", {width}});
    plan.push_back({prefix + "attn_q.weight", {queries, width}});
    plan.push_back({prefix + "attn_k.weight", {keys, width}});
    plan.push_back({prefix + "attn_v.weight", {keys, width}});
    plan.push_back({prefix + "attn_output.weight", {width, queries}});
    plan.push_back({prefix + "ffn_norm.weight", {width}});
    plan.push_back({prefix + "ffn_gate.weight", {ffn, width}});
    plan.push_back({prefix + "ffn_up.weight", {ffn, width}});
    plan.push_back({prefix + "ffn_down.weight", {width, ffn}});
  }
  return plan;
}

void check_tensors(const std::vector<ExpectedTensor>& plan, const std::string& what,
                   const GgufFile& file, const std::vector<std::string>& ignored) {
  std::unordered_set<std::string_view> known(ignored.begin(), ignored.end());
  for (const ExpectedTensor& expected : plan) {
    check_tensor(expected, what, file);
    known.insert(expected.name);
  }
  for (const TensorInfo& info : file.tensors()) {
    if (known.contains(info.name) || is_derived(info.name)) continue;
    throw GgufError(str("tensor ", quoted(info.name), " is not part of the ", what,
                        " architecture as supported here; ignoring it would give wrong results"));
  }
}

void check_tensors(const ModelConfig& config, const GgufFile& file) {
  // A file with fewer tensors than layers is refused before a plan of its size is made.
  if (static_cast<std::size_t>(config.layers) > file.tensors().size()) {
    throw GgufError(str("key ", config.architecture, ".block_count is ", config.layers,
                        ", but the file has only ", file.tensors().size(), " tensors"));
  }
  check_tensors(expected_tensors(config), config.architecture, file);
}

}  // namespace specdec
