#include "model/config.h"

#include <algorithm>
#include <cmath>

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
  } else if (type != "none") {
    throw GgufError(str("key ", keys.key("rope.scaling.type"), " is ", quoted(type),
                        "; supported: none, linear, yarn"));
  }
  rope.attention_factor = keys.number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
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

}  // namespace

AttentionShape ModelConfig::attention_shape() const {
  AttentionShape shape;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.rope_dims = rope.dims;
  shape.rope_layout = rope.layout;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  return shape;
}

ModelConfig read_layer_config(const KeyReader& keys) {
  ModelConfig config;
  config.architecture = keys.architecture();
  config.name = printable(keys.metadata().find_string("general.name").value_or(""), 200);
  config.layers = keys.dim("block_count");
  config.width = keys.dim("embedding_length");
  config.ffn_width = keys.uniform_dim_or("feed_forward_length", config.layers, 0);
  if (config.ffn_width == 0) {
    throw GgufError(str("key ", keys.key("feed_forward_length"), " is missing"));
  }
  config.trained_context =
      static_cast<std::int32_t>(keys.metadata().get_uint(keys.key("context_length"), kMaxContext));
  if (config.trained_context == 0) {
    throw GgufError(str("key ", keys.key("context_length"), " is 0: the file is damaged"));
  }
  read_heads(keys, config);
  config.rms_eps =
      static_cast<float>(keys.number_or("attention.layer_norm_rms_epsilon", 1e-5, 0.0, 1.0));
  config.rope = read_rope(keys, config.head_dim, config.trained_context);
  return config;
}

ModelConfig read_config(const GgufFile& file) {
  const KeyReader keys(file);
  if (keys.architecture() == "eagle3" || keys.architecture() == "medusa") {
    throw GgufError(str("the file holds drafting heads (general.architecture is ",
                        quoted(keys.architecture()), "), no model: give it as a draft, as in ",
                        keys.architecture() == "medusa" ? "medusa:" : "eagle:", "PATH"));
  }
  if (keys.architecture() != "llama") {
    throw GgufError(str("key general.architecture is ", quoted(keys.architecture()),
                        "; supported architectures: llama"));
  }
  if (keys.metadata().find_uint(keys.key("expert_count")).value_or(0) != 0) {
    throw GgufError(str("key ", keys.key("expert_count"),
                        " is not 0: mixtures of experts are not supported yet"));
  }
  ModelConfig config = read_layer_config(keys);
  config.vocab = real_vocabulary_size(file.metadata());
  config.vocab_rows = read_vocab_rows(file, config.vocab);
  return config;
}

}  // namespace specdec
