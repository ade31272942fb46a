// Names, keys and defaults: those of llama.cpp (src/models/*.cpp and gguf-py there).
#include "model/architectures.h"

#include <array>
#include <cmath>

#include "core/error.h"
#include "model/config.h"
#include "model/key_reader.h"

namespace specdec {
namespace {

float inverse_root(std::int32_t dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

float embedding_root(const ModelConfig& config) {
  return static_cast<float>(std::sqrt(static_cast<double>(config.width)));
}

float cap(const KeyReader& keys, const char* name, double fallback) {
  return static_cast<float>(keys.number_or(name, fallback, 0.0, 1e6));
}

void require_window(const KeyReader& keys, const ModelConfig& config) {
  if (config.window != 0) return;
  throw GgufError(str("key ", keys.key("attention.sliding_window"), " is missing or 0: half of ",
                      "the layers of this architecture have a window"));
}

void read_gemma2(const KeyReader& keys, ModelConfig& config) {
  config.embedding_scale = embedding_root(config);
  config.score_cap = cap(keys, "attn_logit_softcapping", 50.0);
  config.logit_cap = cap(keys, "final_logit_softcapping", 30.0);
  if (keys.find("attention.sliding_window") == nullptr) config.window = 4096;
  require_window(keys, config);
  // The 27B model divides by the root of width / heads, which is not its head size.
  if (config.layers == 46 && config.attention_scale == 0.0f) {
    config.attention_scale = inverse_root(config.width / config.heads);
  }
}

void read_gemma3(const KeyReader& keys, ModelConfig& config) {
  config.embedding_scale = embedding_root(config);
  config.score_cap = cap(keys, "attn_logit_softcapping", 0.0);
  config.logit_cap = cap(keys, "final_logit_softcapping", 0.0);
  if (config.layers == 62 && config.attention_scale == 0.0f) {  // 27B, as above
    config.attention_scale = inverse_root(config.width / config.heads);
  }
}

void read_granite(const KeyReader& keys, ModelConfig& config) {
  config.embedding_scale = static_cast<float>(keys.number_or("embedding_scale", 1.0, 0.0, 1e6));
  config.residual_scale = static_cast<float>(keys.number_or("residual_scale", 1.0, 0.0, 1e6));
  const double divisor = keys.number_or("logit_scale", 1.0, 0.0, 1e6);
  if (divisor != 0.0) config.logit_scale = static_cast<float>(1.0 / divisor);
  if (config.embedding_scale == 0.0f) config.embedding_scale = 1.0f;
  if (config.residual_scale == 0.0f) config.residual_scale = 1.0f;
  // What its files call fine-tuned rope says whether positions are encoded at all.
  if (!keys.flag_or("rope.scaling.finetuned", true)) {
    config.rotated.assign(static_cast<std::size_t>(config.layers), false);
  }
}

// Every fourth layer has no positions.
void read_smollm3(const KeyReader&, ModelConfig& config) {
  for (std::size_t i = 3; i < config.rotated.size(); i += 4) config.rotated[i] = false;
}

void read_gpt_oss(const KeyReader& keys, ModelConfig& config) {
  require_window(keys, config);
  config.rope.yarn_whole_pairs = false;
}

// Ministral 3: queries grow with the logarithm of the position.
void read_mistral3(const KeyReader& keys, ModelConfig& config) {
  config.query_growth = keys.number_or("attention.temperature_scale", 0.0, 0.0, 1e3);
  config.query_growth_length = keys.count_or("attention.temperature_length", 0, kMaxContext);
  if (config.query_growth_length == 0) config.query_growth_length = config.rope.original_context;
}

constexpr RopeLayout kHalves = RopeLayout::kHalves;

constexpr Architecture kLlama{.name = "llama",
                              .qkv_bias = Has::kMaybe,
                              .output_bias = Has::kMaybe,
                              .mlp_bias = Has::kMaybe,
                              .windows = Windows::kUsual,
                              .experts = Has::kMaybe,
                              .softmax_of_used = true};

constexpr std::array kArchitectures{
    kLlama,
    Architecture{.name = "qwen2",
                 .rope_layout = kHalves,
                 .qkv_bias = Has::kAlways,
                 .windows = Windows::kListed},
    Architecture{.name = "qwen3",
                 .rope_layout = kHalves,
                 .qk_norm = QkNorm::kPerHead,
                 .windows = Windows::kListed},
    Architecture{.name = "gemma2",
                 .rope_layout = kHalves,
                 .post_norms = true,
                 .activation = Activation::kGelu,
                 .windows = Windows::kUsual,
                 .window_period = 2,
                 .read_oddities = read_gemma2},
    Architecture{.name = "gemma3",
                 .rope_layout = kHalves,
                 .post_norms = true,
                 .qk_norm = QkNorm::kPerHead,
                 .activation = Activation::kGelu,
                 .windows = Windows::kUsual,
                 .window_period = 6,
                 .unscaled_local_rope = true,
                 .local_base = 10000.0,
                 .read_oddities = read_gemma3},
    Architecture{
        .name = "phi3", .rope_layout = kHalves, .fused_up = true, .windows = Windows::kUsual},
    Architecture{.name = "mistral3",
                 .qkv_bias = Has::kMaybe,
                 .output_bias = Has::kMaybe,
                 .mlp_bias = Has::kMaybe,
                 .windows = Windows::kUsual,
                 .read_oddities = read_mistral3},
    Architecture{.name = "granite",
                 .qkv_bias = Has::kMaybe,
                 .output_bias = Has::kMaybe,
                 .mlp_bias = Has::kMaybe,
                 .read_oddities = read_granite},
    Architecture{.name = "smollm3",
                 .qkv_bias = Has::kMaybe,
                 .output_bias = Has::kMaybe,
                 .mlp_bias = Has::kMaybe,
                 .read_oddities = read_smollm3},
    Architecture{.name = "olmo2",
                 .rope_layout = kHalves,
                 .pre_norms = false,
                 .post_norms = true,
                 .qk_norm = QkNorm::kPerRow,
                 .windows = Windows::kUsual,
                 .window_period = 4,
                 .unscaled_local_rope = true},
    Architecture{.name = "starcoder2",
                 .rope_layout = kHalves,
                 .norm = NormKind::kLayer,
                 .qkv_bias = Has::kMaybe,
                 .output_bias = Has::kMaybe,
                 .mlp_bias = Has::kMaybe,
                 .activation = Activation::kGelu,
                 .gated = false,
                 .windows = Windows::kUsual},
    Architecture{.name = "qwen2moe",
                 .rope_layout = kHalves,
                 .qkv_bias = Has::kMaybe,
                 .windows = Windows::kListed,
                 .experts = Has::kAlways,
                 .shared_expert = true},
    Architecture{.name = "qwen3moe",
                 .rope_layout = kHalves,
                 .qk_norm = QkNorm::kPerHead,
                 .windows = Windows::kListed,
                 .experts = Has::kAlways,
                 .softmax_of_used = true},
    Architecture{.name = "gpt-oss",
                 .rope_layout = kHalves,
                 .ffn_norm = "post_attention_norm",
                 .qkv_bias = Has::kAlways,
                 .output_bias = Has::kAlways,
                 .activation = Activation::kClampedSwiglu,
                 .windows = Windows::kUsual,
                 .window_period = 2,
                 .experts = Has::kAlways,
                 .softmax_of_used = true,
                 .expert_bias = true,
                 .sinks = true,
                 .read_oddities = read_gpt_oss},
};

}  // namespace

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& one : kArchitectures) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Architecture& one : kArchitectures) names.emplace_back(one.name);
  return names;
}

}  // namespace specdec
