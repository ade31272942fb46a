#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "backend/expert_rule.h"
#include "core/error.h"
#include "core/printable.h"
#include "model/key_reader.h"
#include "model/vocabulary.h"

namespace specdec {
namespace {

// Files without a scaling type but with a factor mean linear scaling, as llama.cpp reads them.
void read_rope_scaling(const KeyReader& keys, RopeConfig& rope, std::int32_t trained_context) {
  const double old_factor = keys.number_or("rope.scale_linear", 0.0, 0.0, 1e6);  // of old files
  const double factor = keys.number_or("rope.scaling.factor", old_factor, 0.0, 1e6);
  rope.factor = factor == 0.0 ? 1.0 : factor;
  const std::string type = keys.text_or("rope.scaling.type", "linear");
  if (type == "linear") {
    rope.scaling = rope.factor == 1.0 ? RopeScaling::kNone : RopeScaling::kLinear;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else if (type != "none" && type != "longrope") {  // long-rope: tensors hold its factors
    throw GgufError(str("key ", keys.key("rope.scaling.type"), " is ", quoted(type),
                        "; supported: none, linear, yarn, longrope"));
  }
  rope.attention_factor = keys.number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3) *
                          keys.number_or("rope.scaling.yarn_attn_factor", 1.0, 1e-3, 1e3);
  const double mix = keys.number_or("rope.scaling.yarn_ext_factor", 1.0, -1.0, 1e3);
  if (mix != 1.0 && mix != -1.0) {  // -1: the default
    throw GgufError(str("key ", keys.key("rope.scaling.yarn_ext_factor"), " is ", mix,
                        "; only 1 is supported"));
  }
  rope.original_context = static_cast<std::int32_t>(
      keys.metadata()
          .find_uint(keys.key("rope.scaling.original_context_length"), kMaxContext)
          .value_or(0));
  if (rope.original_context == 0) rope.original_context = trained_context;
  rope.beta_fast = keys.number_or("rope.scaling.yarn_beta_fast", 32.0, 1e-3, 1e6);
  rope.beta_slow = keys.number_or("rope.scaling.yarn_beta_slow", 1.0, 1e-3, 1e6);
  rope.log_multiplier = keys.number_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e3);
}

RopeConfig read_rope(const KeyReader& keys, std::int32_t head_dim, std::int32_t trained_context) {
  RopeConfig rope;
  rope.dims = keys.dim_or("rope.dimension_count", head_dim);
  if (rope.dims > head_dim || rope.dims % 2 != 0) {
    throw GgufError(str("key ", keys.key("rope.dimension_count"), " is ", rope.dims,
                        "; it must be even and at most the head size ", head_dim));
  }
  rope.base = keys.number_or("rope.freq_base", 10000.0, 1.0, 1e12);
  read_rope_scaling(keys, rope, trained_context);
  return rope;
}

void read_heads(const KeyReader& keys, ModelConfig& config) {
  config.heads = keys.uniform_dim_or("attention.head_count", config.layers, 0);
  if (config.heads == 0) {
    throw GgufError(str("key ", keys.key("attention.head_count"), " is missing"));
  }
  config.kv_heads = keys.uniform_dim_or("attention.head_count_kv", config.layers, config.heads);
  if (config.heads % config.kv_heads != 0) {
    throw GgufError(str(keys.key("attention.head_count"), " (", config.heads,
                        ") is not a multiple of head_count_kv (", config.kv_heads, ")"));
  }
  const std::int32_t key_length = keys.dim_or("attention.key_length", 0);  // 0 = absent
  if (key_length == 0 && config.width % config.heads != 0) {
    throw GgufError(str(keys.key("embedding_length"), " (", config.width,
                        ") is not a multiple of head_count (", config.heads,
                        "), and attention.key_length is missing"));
  }
  config.head_dim = key_length != 0 ? key_length : config.width / config.heads;
  const std::int32_t value_length = keys.dim_or("attention.value_length", config.head_dim);
  if (value_length != config.head_dim) {
    throw GgufError(str(keys.key("attention.value_length"), " (", value_length,
                        ") differs from the key length (", config.head_dim,
                        "): such models are not supported"));
  }
}

// The rows of the embedding set the width of the logits; ids beyond the token list are padding.
std::int32_t read_vocab_rows(const GgufFile& file, std::int32_t vocab) {
  const TensorInfo* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    throw GgufError(file.tensors().empty()
                        ? "the file holds no weights, only a vocabulary: it cannot be run"
                        : "tensor 'token_embd.weight' is missing: the file is incomplete");
  }
  if (embedding->shape.size() != 2 || embedding->shape[0] < static_cast<std::size_t>(vocab) ||
      embedding->shape[0] > (1u << 24)) {
    throw GgufError(str("tensor 'token_embd.weight' has ",
                        embedding->shape.empty() ? 0 : embedding->shape[0], " rows for ", vocab,
                        " tokens: the file is damaged"));
  }
  return static_cast<std::int32_t>(embedding->shape[0]);
}

// Which tensors of those that a family may have this file has.
bool has_tensor(const GgufFile& file, Has has, const char* name) {
  if (has != Has::kMaybe) return has == Has::kAlways;
  return file.find_tensor(name) != nullptr;
}

// Its factors are tensors: without them the scaling would silently be none.
void check_long_rope(const KeyReader& keys, const GgufFile& file) {
  const bool wanted = keys.text_or("rope.scaling.type", "") == "longrope";
  if (wanted && file.find_tensor("rope_factors_long.weight") == nullptr) {
    throw GgufError(str("key ", keys.key("rope.scaling.type"),
                        " is 'longrope', but tensor 'rope_factors_long.weight' is missing: the ",
                        "file is incomplete"));
  }
}

void read_windows(const KeyReader& keys, ModelConfig& config) {
  const Architecture& traits = *config.traits;
  const auto layers = static_cast<std::size_t>(config.layers);
  config.local.assign(layers, false);
  config.rotated.assign(layers, true);
  if (traits.windows == Windows::kNone) return;
  config.window = static_cast<std::int32_t>(
      keys.metadata().find_uint(keys.key("attention.sliding_window"), kMaxContext).value_or(0));
}

// Once the size is known: a list of the layers, or their period.
void spread_windows(const KeyReader& keys, ModelConfig& config) {
  const Architecture& traits = *config.traits;
  if (config.window == 0) return;
  const std::string name = keys.key("attention.sliding_window_pattern");
  const MetadataValue* pattern = keys.metadata().find(name);
  if (pattern != nullptr && pattern->is_array) {
    config.local = keys.flags(name, config.layers);
    return;
  }
  if (traits.windows == Windows::kAll) {
    config.local.assign(config.local.size(), true);
    return;
  }
  const auto period = static_cast<std::size_t>(
      keys.dim_or("attention.sliding_window_pattern", traits.window_period));
  for (std::size_t i = 0; i < config.local.size(); ++i) config.local[i] = i % period + 1 < period;
}

ExpertConfig read_experts(const KeyReader& keys, const ModelConfig& config) {
  const Architecture& traits = *config.traits;
  ExpertConfig experts;
  const auto count = keys.metadata().find_uint(keys.key("expert_count")).value_or(0);
  if (count == 0 && traits.experts != Has::kAlways) return experts;
  if (traits.experts == Has::kNever) {
    throw GgufError(str("key ", keys.key("expert_count"), " is ", count, ": mixtures of experts ",
                        "of the architecture ", traits.name, " are not supported"));
  }
  if (count > static_cast<std::uint64_t>(kMaxExperts)) {
    throw GgufError(str("key ", keys.key("expert_count"), " is ", count, "; at most ", kMaxExperts,
                        " are supported"));
  }
  experts.count = keys.dim("expert_count");
  experts.used = keys.dim("expert_used_count");
  if (experts.used > experts.count) {
    throw GgufError(str("key ", keys.key("expert_used_count"), " is ", experts.used, " of ",
                        experts.count, " experts: the file is damaged"));
  }
  const std::int32_t whole = config.ffn_width;
  const bool as_wide = traits.experts == Has::kMaybe;  // Mixtral: each as wide as an MLP
  experts.ffn_width =
      keys.dim_or("expert_feed_forward_length", as_wide ? whole : whole / experts.used);
  if (experts.ffn_width == 0) {
    throw GgufError(str("key ", keys.key("expert_feed_forward_length"), " is missing"));
  }
  if (traits.shared_expert) {
    experts.shared_width = keys.dim_or("expert_shared_feed_forward_length", whole);
  }
  const auto gating = keys.metadata().find_uint(keys.key("expert_gating_func")).value_or(0);
  // 1: a softmax over all experts, before the choice; 3: over the chosen ones.
  if (gating != 0 && gating != 1 && gating != 3) {
    throw GgufError(str("key ", keys.key("expert_gating_func"), " is ", gating,
                        "; supported: 1 (softmax) and 3 (softmax of the chosen experts)"));
  }
  experts.softmax_of_used =
      gating == 3 ||
      keys.metadata().find_bool(keys.key("expert_weights_norm")).value_or(traits.softmax_of_used);
  const double scale = keys.number_or("expert_weights_scale", 1.0, 0.0, 1e6);
  experts.weight_scale = scale == 0.0 ? 1.0f : static_cast<float>(scale);
  return experts;
}

}  // namespace

AttentionShape ModelConfig::attention_shape(std::int32_t layer) const {
  const auto index = static_cast<std::size_t>(layer);
  AttentionShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.rope_dims = rotated[index] ? rope.dims : 0;
  shape.rope_layout = rope.layout;
  shape.scale = attention_scale != 0.0f
                    ? attention_scale
                    : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  shape.window = local[index] ? window : 0;
  shape.score_cap = score_cap;
  return shape;
}

ModelConfig read_layer_config(const KeyReader& keys, const GgufFile& file,
                              const Architecture& traits) {
  ModelConfig config;
  config.architecture = keys.architecture();
  config.traits = &traits;
  config.name = printable(keys.metadata().find_string("general.name").value_or(""), 200);
  config.layers = keys.dim("block_count");
  config.width = keys.dim("embedding_length");
  config.ffn_width = keys.uniform_dim_or("feed_forward_length", config.layers, 0);
  config.trained_context =
      static_cast<std::int32_t>(keys.metadata().get_uint(keys.key("context_length"), kMaxContext));
  if (config.trained_context == 0) {
    throw GgufError(str("key ", keys.key("context_length"), " is 0: the file is damaged"));
  }
  read_heads(keys, config);
  config.experts = read_experts(keys, config);
  if (config.ffn_width == 0 && config.experts.count == 0) {
    throw GgufError(str("key ", keys.key("feed_forward_length"), " is missing"));
  }
  const bool rms = traits.norm == NormKind::kRms;
  config.norm_eps = static_cast<float>(keys.number_or(
      rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 1e-5, 0.0, 1.0));
  config.rope = read_rope(keys, config.head_dim, config.trained_context);
  config.rope.layout = traits.rope_layout;
  check_long_rope(keys, file);
  config.attention_scale = static_cast<float>(keys.number_or("attention.scale", 0.0, 0.0, 1e6));
  config.fused_qkv = file.find_tensor("blk.0.attn_qkv.weight") != nullptr;
  config.qkv_bias = has_tensor(file, traits.qkv_bias,
                               config.fused_qkv ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
  config.output_bias = has_tensor(file, traits.output_bias, "blk.0.attn_output.bias");
  config.mlp_bias = has_tensor(file, traits.mlp_bias, "blk.0.ffn_up.bias");
  read_windows(keys, config);
  if (traits.read_oddities != nullptr) traits.read_oddities(keys, config);
  spread_windows(keys, config);
  return config;
}

ModelConfig read_config(const GgufFile& file) {
  const KeyReader keys(file);
  if (keys.architecture() == "eagle3" || keys.architecture() == "medusa") {
    throw GgufError(str("the file holds drafting heads (general.architecture is ",
                        quoted(keys.architecture()), "), no model: give it as a draft, as in ",
                        keys.architecture() == "medusa" ? "medusa:" : "eagle:", "PATH"));
  }
  const Architecture* traits = find_architecture(keys.architecture());
  if (traits == nullptr) {
    std::string names;
    for (const std::string& name : supported_architectures()) {
      names += (names.empty() ? "" : ", ") + name;
    }
    throw GgufError(str("key general.architecture is ", quoted(keys.architecture()),
                        "; supported architectures: ", names));
  }
  if (!file.metadata().find_bool(keys.key("attention.causal")).value_or(true)) {
    throw GgufError(str("key ", keys.key("attention.causal"), " is false: models that read in ",
                        "both directions do not generate text, and are not supported"));
  }
  ModelConfig config = read_layer_config(keys, file, *traits);
  config.vocab = real_vocabulary_size(file.metadata());
  config.vocab_rows = read_vocab_rows(file, config.vocab);
  return config;
}

}  // namespace specdec
