#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "backend/expert_rule.h"
#include "core/error.h"
#include "core/printable.h"
#include "model/key_reader.h"
#include "model/rope_config.h"
#include "model/unread_keys.h"
#include "model/vocabulary.h"

namespace specdec {
namespace {

// Adapters and projectors have the architecture of the model that they go with.
void check_kind(const Metadata& metadata) {
  const std::string_view kind = metadata.find_string("general.type").value_or("model");
  if (kind == "model") return;
  throw GgufError(str("key general.type is ", quoted(kind), ": the file holds no model",
                      kind == "adapter" ? " but changes to one (a LoRA adapter): merge it into its "
                                          "model before the conversion, and give that"
                      : kind == "mmproj" ? " but what turns images or sound into a model's input; "
                                           "give the file of the model itself"
                                         : "; give the file of a model"));
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

float read_norm_eps(const KeyReader& keys, NormKind norm) {
  const char* name =
      norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  if (keys.find(name) == nullptr) {
    throw GgufError(str("key ", keys.key(name), " is missing: the file is incomplete"));
  }
  return static_cast<float>(keys.number_or(name, 0.0, 0.0, 1.0));
}

// The size of the windows. Which layers have one is known after the family's oddities.
void read_windows(const KeyReader& keys, ModelConfig& config) {
  const auto layers = static_cast<std::size_t>(config.layers);
  config.local.assign(layers, false);
  config.rotated.assign(layers, true);
  if (config.traits->windows == Windows::kNone) return;
  const std::int32_t size = keys.count_or("attention.sliding_window", 0, kMaxContext);
  const bool listed = keys.find("attention.sliding_window_pattern") != nullptr;
  if (listed || config.traits->windows != Windows::kListed) config.window = size;
}

// The layers that have a window: a list of them, or their period. As in llama.cpp a period of 0
// means all of them, and 1 none.
void spread_windows(const KeyReader& keys, ModelConfig& config) {
  const Architecture& traits = *config.traits;
  if (config.window == 0) return;
  const MetadataValue* pattern = keys.find("attention.sliding_window_pattern");
  if (pattern != nullptr && pattern->is_array) {
    config.local = keys.flags("attention.sliding_window_pattern", config.layers);
  } else {
    const std::int32_t period =
        keys.count_or("attention.sliding_window_pattern", traits.window_period);
    for (std::int32_t i = 0; i < config.layers; ++i) {
      config.local[static_cast<std::size_t>(i)] = period == 0 || i % period + 1 < period;
    }
  }
  if (std::find(config.local.begin(), config.local.end(), true) != config.local.end()) {
    config.local_rope = read_local_rope(keys, config);
  }
}

// Layers without positions, in files that list those that have them.
void read_rope_pattern(const KeyReader& keys, ModelConfig& config) {
  if (keys.find("attention.rope_pattern") == nullptr) return;
  const std::vector<bool> rotated = keys.flags("attention.rope_pattern", config.layers);
  for (std::size_t i = 0; i < rotated.size(); ++i) {
    config.rotated[i] = config.rotated[i] && rotated[i];
  }
}

ExpertConfig read_experts(const KeyReader& keys, const ModelConfig& config) {
  const Architecture& traits = *config.traits;
  ExpertConfig experts;
  const std::int32_t count = keys.count_or("expert_count", 0);
  if (count == 0 && traits.experts != Has::kAlways) return experts;
  if (traits.experts == Has::kNever) {
    throw GgufError(str("key ", keys.key("expert_count"), " is ", count, ": mixtures of experts ",
                        "of the architecture ", traits.name, " are not supported"));
  }
  if (count > kMaxExperts) {
    throw GgufError(str("key ", keys.key("expert_count"), " is ", count, "; at most ", kMaxExperts,
                        " are supported"));
  }
  experts.count = keys.dim("expert_count");
  experts.used = keys.uniform_dim_or("expert_used_count", config.layers, 0);
  if (experts.used == 0) {
    throw GgufError(str("key ", keys.key("expert_used_count"), " is missing"));
  }
  if (experts.used > experts.count) {
    throw GgufError(str("key ", keys.key("expert_used_count"), " is ", experts.used, " of ",
                        experts.count, " experts: the file is damaged"));
  }
  // Widths of 0 mean the usual ones, as llama.cpp writes and reads them.
  const std::int32_t whole = config.ffn_width;
  const bool as_wide = traits.experts == Has::kMaybe;  // Mixtral: each as wide as an MLP
  experts.ffn_width = keys.uniform_count_or("expert_feed_forward_length", config.layers, 0);
  if (experts.ffn_width == 0) experts.ffn_width = as_wide ? whole : whole / experts.used;
  if (experts.ffn_width == 0) {
    throw GgufError(str("key ", keys.key("expert_feed_forward_length"), " is missing"));
  }
  if (traits.shared_expert) {
    experts.shared_width = keys.count_or("expert_shared_feed_forward_length", 0);
    if (experts.shared_width == 0) experts.shared_width = whole;
  }
  const std::int32_t gating = keys.count_or("expert_gating_func", 0);
  // 1: a softmax over all experts, before the choice; 3: over the chosen ones.
  if (gating != 0 && gating != 1 && gating != 3) {
    throw GgufError(str("key ", keys.key("expert_gating_func"), " is ", gating,
                        "; supported: 1 (softmax) and 3 (softmax of the chosen experts)"));
  }
  // llama.cpp's saver writes `false` for every family, and its engine does not look at it in these.
  const bool norm = keys.flag_or("expert_weights_norm", false);
  const bool usual = keys.flag_or("norm_top_k_prob", traits.softmax_of_used);  // Ollama's
  experts.softmax_of_used = gating == 3 || norm || usual;
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
  config.norm_eps = read_norm_eps(keys, traits.norm);
  config.rope = read_rope(keys, file, config.head_dim, config.trained_context);
  config.rope.layout = traits.rope_layout;
  config.attention_scale = static_cast<float>(keys.number_or("attention.scale", 0.0, 0.0, 1e6));
  config.fused_qkv = file.find_tensor("blk.0.attn_qkv.weight") != nullptr;
  config.qkv_bias = has_tensor(file, traits.qkv_bias,
                               config.fused_qkv ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
  config.output_bias = has_tensor(file, traits.output_bias, "blk.0.attn_output.bias");
  config.mlp_bias = has_tensor(file, traits.mlp_bias, "blk.0.ffn_up.bias");
  read_windows(keys, config);
  if (traits.read_oddities != nullptr) traits.read_oddities(keys, config);
  spread_windows(keys, config);
  read_rope_pattern(keys, config);
  refuse_unread_keys(keys, traits);
  return config;
}

ModelConfig read_config(const GgufFile& file) {
  check_kind(file.metadata());
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
  if (!keys.flag_or("attention.causal", true)) {
    throw GgufError(str("key ", keys.key("attention.causal"), " is false: models that read in ",
                        "both directions do not generate text, and are not supported"));
  }
  ModelConfig config = read_layer_config(keys, file, *traits);
  config.vocab = real_vocabulary_size(file.metadata());
  config.vocab_rows = read_vocab_rows(file, config.vocab);
  return config;
}

}  // namespace specdec
