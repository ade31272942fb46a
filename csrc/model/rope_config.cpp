// Keys and defaults: those of llama.cpp (load_hparams in src/llama-model.cpp). The second names of
// bases and ramps are those of Ollama's converter.
#include "model/rope_config.h"

#include "core/error.h"
#include "core/printable.h"
#include "model/key_reader.h"

namespace specdec {
namespace {

// Files without a scaling type but with a factor mean linear scaling, as llama.cpp reads them. A
// linear factor of 0 means none, as llama.cpp writes it (src/llama-model-saver.cpp).
RopeScaling read_scaling_type(const KeyReader& keys) {
  const std::string type = keys.text_or("rope.scaling.type", "");
  if (type.empty() || type == "linear") return RopeScaling::kLinear;
  if (type == "yarn") return RopeScaling::kYarn;
  if (type == "none" || type == "longrope") return RopeScaling::kNone;  // tensors hold its factors
  throw GgufError(str("key ", keys.key("rope.scaling.type"), " is ", quoted(type),
                      "; supported: none, linear, yarn, longrope"));
}

double read_factor(const KeyReader& keys, RopeScaling scaling) {
  const std::string name = keys.first_of({"rope.scaling.factor", "rope.scale_linear"});
  const double factor = keys.number_or(name, 0.0, 0.0, 1e6);
  if (factor != 0.0) return factor;
  const bool given = keys.find(name) != nullptr;
  const bool asked_for = keys.find("rope.scaling.type") != nullptr;
  if (scaling == RopeScaling::kYarn || (scaling == RopeScaling::kLinear && asked_for && !given)) {
    throw GgufError(str("key ", keys.key("rope.scaling.factor"), given ? " is 0" : " is missing",
                        ", but ", keys.key("rope.scaling.type"), " is '",
                        keys.text_or("rope.scaling.type", ""),
                        "': how far the context is extended is not known; convert the model again, "
                        "or set the key to the factor that its config.json names"));
  }
  return 1.0;
}

void read_yarn(const KeyReader& keys, RopeConfig& rope) {
  const double mix = keys.number_or("rope.scaling.yarn_ext_factor", 1.0, -1.0, 1e3);
  if (mix != 1.0 && mix != -1.0) {  // -1: the default
    throw GgufError(str("key ", keys.key("rope.scaling.yarn_ext_factor"), " is ", mix,
                        "; only 1 is supported"));
  }
  if (rope.base <= 1.0) {
    throw GgufError(str("key ", keys.key("rope.freq_base"), " is ", rope.base,
                        ", with which there is no YaRN scaling: the file is damaged"));
  }
  const std::string fast = keys.first_of({"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast"});
  const std::string slow = keys.first_of({"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow"});
  rope.beta_fast = keys.number_or(fast, 32.0, 1e-3, 1e6);
  rope.beta_slow = keys.number_or(slow, 1.0, 1e-3, 1e6);
  rope.log_multiplier = keys.number_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e3);
}

// Its factors are two tensors, and the length of the cache chooses between them.
void check_long_rope(const KeyReader& keys, const GgufFile& file, const RopeConfig& rope) {
  const bool has_short = file.find_tensor("rope_factors_short.weight") != nullptr;
  const bool has_long = file.find_tensor("rope_factors_long.weight") != nullptr;
  const bool wanted = keys.text_or("rope.scaling.type", "") == "longrope";
  if (has_short != has_long || (wanted && !has_long)) {
    throw GgufError(str("tensor '",
                        has_long ? "rope_factors_short.weight" : "rope_factors_long.weight",
                        "' is missing: long-rope needs 'rope_factors_short.weight' and ",
                        "'rope_factors_long.weight', the file is incomplete"));
  }
  if (has_long && rope.original_context == 0) {
    const std::string name = keys.key("rope.scaling.original_context_length");
    throw GgufError(str("key ", name, keys.metadata().find(name) ? " is 0" : " is missing",
                        ", but the file has the factors of long-rope: from which length on the ",
                        "long ones hold is not known; convert the model again"));
  }
}

}  // namespace

RopeConfig read_rope(const KeyReader& keys, const GgufFile& file, std::int32_t head_dim,
                     std::int32_t trained_context) {
  RopeConfig rope;
  rope.dims = keys.dim_or("rope.dimension_count", head_dim);
  if (rope.dims > head_dim || rope.dims % 2 != 0) {
    throw GgufError(str("key ", keys.key("rope.dimension_count"), " is ", rope.dims,
                        "; it must be even and at most the head size ", head_dim));
  }
  const std::string base = keys.first_of({"rope.freq_base", "rope.global.freq_base"});
  rope.base = keys.number_or(base, 10000.0, 1.0, 1e12);
  rope.scaling = read_scaling_type(keys);
  rope.factor = read_factor(keys, rope.scaling);
  if (rope.scaling == RopeScaling::kLinear && rope.factor == 1.0) rope.scaling = RopeScaling::kNone;
  rope.attention_factor = keys.number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3) *
                          keys.number_or("rope.scaling.yarn_attn_factor", 1.0, 1e-3, 1e3);
  rope.original_context = keys.count_or("rope.scaling.original_context_length", 0, kMaxContext);
  check_long_rope(keys, file, rope);
  // YaRN's: files of several converters leave it to this default, which transformers has, too.
  if (rope.original_context == 0) rope.original_context = trained_context;
  if (rope.scaling == RopeScaling::kYarn) read_yarn(keys, rope);
  return rope;
}

std::optional<RopeConfig> read_local_rope(const KeyReader& keys, const ModelConfig& config) {
  const Architecture& traits = *config.traits;
  const std::int32_t dims = keys.count_or("rope.dimension_count_swa", config.rope.dims);
  if (dims != config.rope.dims) {
    throw GgufError(str("key ", keys.key("rope.dimension_count_swa"), " is ", dims, ", but ",
                        keys.key("rope.dimension_count"), " is ", config.rope.dims,
                        ": layers that differ so are not supported"));
  }
  const std::string name = keys.first_of({"rope.freq_base_swa", "rope.local.freq_base"});
  const double usual = traits.local_base != 0.0 ? traits.local_base : config.rope.base;
  const double base = keys.number_or(name, usual, 1.0, 1e12);
  if (traits.unscaled_local_rope) return config.rope.unscaled(base);
  if (base == config.rope.base) return std::nullopt;
  RopeConfig rope = config.rope;
  rope.base = base;
  return rope;
}

}  // namespace specdec
