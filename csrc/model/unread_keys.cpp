#include "model/unread_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/printable.h"
#include "model/architectures.h"
#include "model/key_reader.h"

namespace specdec {
namespace {

// Of numbers and truth values; what has no effect beside 0 (off) and false.
struct NumberKey {
  const char* name;
  bool one_is_neutral = false;  // a factor, or a count where one is as good as none
};

// The names are llama.cpp's (LLM_KV_NAMES in src/llama-arch.cpp); its converter and its saver write
// many of them into files of all families, with a neutral value. Those of the last group are
// Ollama's names for what other families read under llama.cpp's.
constexpr std::array kNumberKeys{
    // attention
    NumberKey{"attn_logit_softcapping"},
    NumberKey{"attention.clamp_kqv"},
    NumberKey{"attention.max_alibi_bias"},
    NumberKey{"attention.output_scale", true},
    NumberKey{"attention.value_scale", true},
    NumberKey{"attention.temperature_scale"},
    NumberKey{"attention.sliding_window"},
    NumberKey{"attention.shared_kv_layers"},
    NumberKey{"rope.scaling.alpha", true},
    // residual stream and logits
    NumberKey{"embedding_scale", true},
    NumberKey{"residual_scale", true},
    NumberKey{"logit_scale", true},
    NumberKey{"final_logit_softcapping"},
    NumberKey{"use_parallel_residual"},
    NumberKey{"swin_norm"},
    NumberKey{"rescale_every_n_layers"},
    // which layers there are, and how often they run
    NumberKey{"leading_dense_block_count"},
    NumberKey{"nextn_predict_layers"},
    NumberKey{"interleave_moe_layer_step", true},
    NumberKey{"moe_every_n_layers", true},
    NumberKey{"num_loops", true},
    NumberKey{"hash_layer_count"},
    // experts
    NumberKey{"router_logit_softcapping"},
    NumberKey{"expert_group_count", true},
    NumberKey{"experts_per_group", true},
    NumberKey{"swiglu_clamp_exp"},
    NumberKey{"swiglu_clamp_shexp"},
    // drafting heads
    NumberKey{"norm_before_fc"},
    // Ollama's
    NumberKey{"rope.scaling_beta"},
};

struct TextKey {
  const char* name;
  std::span<const std::string_view> neutral;
};

// How the rows of q and k are permuted: both are the usual order of a family's files.
constexpr std::array<std::string_view, 2> kLayouts{"reference", "Meta AI original pth"};
constexpr std::array<std::string_view, 2> kSilu{"silu", "swish"};
// Published configurations call the approximation by tanh by all of these.
constexpr std::array<std::string_view, 4> kGelu{"gelu", "gelu_new", "gelu_tanh",
                                                "gelu_pytorch_tanh"};

std::span<const std::string_view> activation_names(Activation activation) {
  return activation == Activation::kGelu ? std::span<const std::string_view>(kGelu) : kSilu;
}

[[noreturn]] void refuse(const KeyReader& keys, const char* name, const std::string& value) {
  throw GgufError(
      str("key ", keys.key(name), " is ", value, ", which this library does not compute ", "for ",
          quoted(keys.architecture()), " models: their output would be wrong. ",
          "Get a conversion of the model under the architecture that it has, or a newer ",
          "version of this library"));
}

void check_number(const KeyReader& keys, const NumberKey& known) {
  const MetadataValue* value = keys.metadata().find(keys.key(known.name));
  if (value == nullptr) return;
  for (std::size_t i = 0; i < value->count; ++i) {
    const std::optional<double> number = value->number(i);
    if (!number) refuse(keys, known.name, value->describe());
    if (*number == 0.0 || (known.one_is_neutral && *number == 1.0)) continue;
    refuse(keys, known.name, value->is_array ? str(*number, " at index ", i) : str(*number));
  }
}

void check_text(const KeyReader& keys, const TextKey& known) {
  const auto text = keys.metadata().find_string(keys.key(known.name));
  if (!text ||
      std::find(known.neutral.begin(), known.neutral.end(), *text) != known.neutral.end()) {
    return;
  }
  refuse(keys, known.name, quoted(*text));
}

}  // namespace

void refuse_unread_keys(const KeyReader& keys, const Architecture& traits) {
  for (const NumberKey& known : kNumberKeys) {
    if (!keys.was_read(known.name)) check_number(keys, known);
  }
  check_text(keys, {"tensor_data_layout", kLayouts});
  check_text(keys, {"hidden_activation", activation_names(traits.activation)});
}

}  // namespace specdec
