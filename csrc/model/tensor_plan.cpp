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

// A vector may be stored as a matrix of one row.
bool same_shape(const std::vector<std::size_t>& found, const std::vector<std::size_t>& expected) {
  if (expected.size() != 1 || found.size() != 2) return found == expected;
  return found[0] == 1 && found[1] == expected[0];
}

void check_tensor(const ExpectedTensor& expected, const std::string& what, const GgufFile& file) {
  const TensorInfo* info = file.find_tensor(expected.name);
  if (info == nullptr) {
    if (expected.optional) return;
    throw GgufError(str("tensor ", quoted(expected.name),
                        " is missing: the file is incomplete or not a plain ", what, " model"));
  }
  if (!same_shape(info->shape, expected.shape)) {
    throw GgufError(str("tensor ", quoted(info->name), " has shape ", shape_text(info->shape),
                        ", expected ", shape_text(expected.shape),
                        " from the metadata: the file is damaged or not a plain ", what, " model"));
  }
  file.view(expected.name);  // refuses a type this library cannot read
}

std::size_t size(std::int32_t value) { return static_cast<std::size_t>(value); }

// The tensors of one layer, as the configuration wants them.
class LayerPlan {
 public:
  LayerPlan(const ModelConfig& config, std::int32_t layer, std::vector<ExpectedTensor>& plan)
      : config_(config), traits_(*config.traits), prefix_(str("blk.", layer, ".")), plan_(plan) {}

  void add_attention() {
    const std::size_t width = size(config_.width), dim = size(config_.head_dim);
    const std::size_t queries = size(config_.heads) * dim, keys = size(config_.kv_heads) * dim;
    if (traits_.pre_norms) add_norm("attn_norm", width);
    if (config_.fused_qkv) {
      add_matrix("attn_qkv", queries + 2 * keys, width, config_.qkv_bias);
    } else {
      add_matrix("attn_q", queries, width, config_.qkv_bias);
      add_matrix("attn_k", keys, width, config_.qkv_bias);
      add_matrix("attn_v", keys, width, config_.qkv_bias);
    }
    if (traits_.qk_norm != QkNorm::kNone) {
      const bool per_head = traits_.qk_norm == QkNorm::kPerHead;
      add("attn_q_norm.weight", {per_head ? dim : queries});
      add("attn_k_norm.weight", {per_head ? dim : keys});
    }
    if (traits_.sinks) add("attn_sinks.weight", {size(config_.heads)});
    add_matrix("attn_output", width, queries, config_.output_bias);
    if (traits_.post_norms) add_norm("post_attention_norm", width);
  }

  void add_mlp() {
    const std::size_t width = size(config_.width), ffn = size(config_.ffn_width);
    if (traits_.pre_norms) add_norm(std::string(traits_.ffn_norm), width);
    if (config_.experts.count > 0) {
      add_experts();
    } else {
      if (traits_.gated && !traits_.fused_up) add_matrix("ffn_gate", ffn, width, config_.mlp_bias);
      add_matrix("ffn_up", traits_.fused_up ? 2 * ffn : ffn, width, config_.mlp_bias);
      add_matrix("ffn_down", width, ffn, config_.mlp_bias);
    }
    if (traits_.post_norms) add_norm("post_ffw_norm", width);
  }

 private:
  void add(const std::string& name, std::vector<std::size_t> shape) {
    plan_.push_back({prefix_ + name, std::move(shape)});
  }

  void add_norm(const std::string& name, std::size_t width) {
    add(name + ".weight", {width});
    if (traits_.norm == NormKind::kLayer) add(name + ".bias", {width});
  }

  void add_matrix(const std::string& name, std::size_t rows, std::size_t cols, bool bias) {
    add(name + ".weight", {rows, cols});
    if (bias) add(name + ".bias", {rows});
  }

  void add_stack(const std::string& name, std::size_t rows, std::size_t cols) {
    const std::size_t count = size(config_.experts.count);
    add(name + ".weight", {count, rows, cols});
    if (traits_.expert_bias) add(name + ".bias", {count, rows});
  }

  void add_experts() {
    const ExpertConfig& experts = config_.experts;
    const std::size_t width = size(config_.width), ffn = size(experts.ffn_width);
    add_matrix("ffn_gate_inp", size(experts.count), width, traits_.expert_bias);
    add_stack("ffn_gate_exps", ffn, width);
    add_stack("ffn_up_exps", ffn, width);
    add_stack("ffn_down_exps", width, ffn);
    if (experts.shared_width == 0) return;
    const std::size_t shared = size(experts.shared_width);
    add("ffn_gate_inp_shexp.weight", {width});
    add_matrix("ffn_gate_shexp", shared, width, false);
    add_matrix("ffn_up_shexp", shared, width, false);
    add_matrix("ffn_down_shexp", width, shared, false);
  }

  const ModelConfig& config_;
  const Architecture& traits_;
  std::string prefix_;
  std::vector<ExpectedTensor>& plan_;
};

}  // namespace

std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config) {
  const std::size_t width = size(config.width), vocab = size(config.vocab_rows);
  const std::size_t pairs = size(config.rope.dims) / 2;
  std::vector<ExpectedTensor> plan = {
      {"token_embd.weight", {vocab, width}},        {"output_norm.weight", {width}},
      {"output.weight", {vocab, width}, true},       // absent: tied to the embedding
      {"rope_freqs.weight", {pairs}, true},          // Llama 3 scaling
      {"rope_factors_short.weight", {pairs}, true},  // long-rope
      {"rope_factors_long.weight", {pairs}, true},
  };
  if (config.traits->norm == NormKind::kLayer) plan.push_back({"output_norm.bias", {width}});
  for (std::int32_t i = 0; i < config.layers; ++i) {
    LayerPlan layer(config, i, plan);
    layer.add_attention();
    layer.add_mlp();
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
