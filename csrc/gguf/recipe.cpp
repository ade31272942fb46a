#include "gguf/recipe.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/printable.h"
#include "gguf/reader.h"

namespace specdec {
namespace {

// The values of general.file_type are those of llama_ftype (llama.h).
// "mxfp4_moe" means the experts (everything else is Q8_0), "mxfp4" every matrix.
constexpr Recipe kRecipes[] = {
    {"f32", DType::kF32, 0},      {"f16", DType::kF16, 1},          {"bf16", DType::kBF16, 32},
    {"q8_0", DType::kQ8_0, 7},    {"q6_k", DType::kQ6_K, 18},       {"q5_k_m", DType::kQ5_K, 17},
    {"q5_k_s", DType::kQ5_K, 16}, {"q5_1", DType::kQ5_1, 9},        {"q5_0", DType::kQ5_0, 8},
    {"q4_k_m", DType::kQ4_K, 15}, {"q4_k_s", DType::kQ4_K, 14},     {"q4_1", DType::kQ4_1, 3},
    {"q4_0", DType::kQ4_0, 2},    {"iq4_nl", DType::kIQ4_NL, 25},   {"iq4_xs", DType::kIQ4_XS, 30},
    {"q3_k_l", DType::kQ3_K, 13}, {"q3_k_m", DType::kQ3_K, 12},     {"q3_k_s", DType::kQ3_K, 11},
    {"q2_k", DType::kQ2_K, 10},   {"mxfp4_moe", DType::kMXFP4, 38}, {"mxfp4", DType::kMXFP4, 38},
};

// What a tensor does, as far as recipes tell tensors apart.
enum class Role { kOutput, kEmbedding, kValues, kKeys, kAttnOutput, kDown, kOther };

// When a rule holds. L is the number of layers, all fractions are rounded down.
enum class When {
  kAlways,
  kFirst2,          // layer < 2
  kFirst4,          // layer < 4
  kFirst16th,       // layer < L / 16
  kFirst8th,        // layer < L / 8
  kFirst8thIf,      // the same, and importance weights are given
  kFirst8thUnless,  // the same, and none are given
  kMoreBits,        // the first and last eighth, and every third layer between
  kSharedKv,        // a key/value head serves four query heads or more
  kEightExperts,
};

struct Rule {
  std::string_view recipe;
  Role role;
  When when;
  DType type;
};

// The first rule that holds counts. Where none does, a tensor gets the recipe's base type.
constexpr Rule kRules[] = {
    {"q2_k", Role::kValues, When::kSharedKv, DType::kQ4_K},
    {"q2_k", Role::kValues, When::kAlways, DType::kQ3_K},
    {"q2_k", Role::kDown, When::kAlways, DType::kQ3_K},
    {"q2_k", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},
    {"q2_k", Role::kAttnOutput, When::kAlways, DType::kQ3_K},

    {"q3_k_s", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},

    {"q3_k_m", Role::kValues, When::kFirst2, DType::kQ5_K},
    {"q3_k_m", Role::kValues, When::kAlways, DType::kQ4_K},
    {"q3_k_m", Role::kDown, When::kFirst16th, DType::kQ5_K},
    {"q3_k_m", Role::kDown, When::kAlways, DType::kQ4_K},
    {"q3_k_m", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},
    {"q3_k_m", Role::kAttnOutput, When::kAlways, DType::kQ4_K},

    {"q3_k_l", Role::kValues, When::kAlways, DType::kQ5_K},
    {"q3_k_l", Role::kDown, When::kAlways, DType::kQ5_K},
    {"q3_k_l", Role::kAttnOutput, When::kEightExperts, DType::kQ3_K},
    {"q3_k_l", Role::kAttnOutput, When::kAlways, DType::kQ5_K},

    {"q4_k_s", Role::kValues, When::kFirst4, DType::kQ5_K},
    {"q4_k_s", Role::kDown, When::kFirst8th, DType::kQ5_K},
    {"q4_k_s", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},

    {"q4_k_m", Role::kValues, When::kMoreBits, DType::kQ6_K},
    {"q4_k_m", Role::kDown, When::kMoreBits, DType::kQ6_K},
    {"q4_k_m", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},

    {"q5_k_m", Role::kValues, When::kMoreBits, DType::kQ6_K},
    {"q5_k_m", Role::kDown, When::kMoreBits, DType::kQ6_K},

    {"q4_0", Role::kDown, When::kFirst8thIf, DType::kQ4_1},
    {"q5_0", Role::kDown, When::kFirst8thIf, DType::kQ5_1},

    {"iq4_nl", Role::kValues, When::kSharedKv, DType::kQ5_K},
    {"iq4_nl", Role::kDown, When::kFirst8thUnless, DType::kQ5_K},
    {"iq4_nl", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},
    {"iq4_xs", Role::kValues, When::kSharedKv, DType::kQ5_K},
    {"iq4_xs", Role::kDown, When::kFirst8thUnless, DType::kQ5_K},
    {"iq4_xs", Role::kAttnOutput, When::kEightExperts, DType::kQ5_K},
};

struct Fallback {
  DType type, simpler;
};

constexpr Fallback kFallbacks[] = {
    {DType::kQ2_K, DType::kQ4_0}, {DType::kQ3_K, DType::kQ4_0}, {DType::kQ4_K, DType::kQ5_0},
    {DType::kQ5_K, DType::kQ5_1}, {DType::kQ6_K, DType::kQ8_0}, {DType::kIQ4_XS, DType::kIQ4_NL},
};

struct Alias {
  std::string_view name, recipe;
};

constexpr Alias kAliases[] = {{"q3_k", "q3_k_m"}, {"q4_k", "q4_k_m"}, {"q5_k", "q5_k_m"}};

// Parts of the names of matrices that are small or decide too much.
constexpr std::string_view kNeverQuantized[] = {
    "_norm.weight", "ffn_gate_inp",         "ffn_gate_tid2eid", "altup",
    "laurel",       "per_layer_model_proj", "position_embd",    "token_types",
    "ssm_conv1d",   "shortconv.conv.",      "attn_rel_b.",
};

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Role role_of(std::string_view name, bool tied_output) {
  if (name == "output.weight") return Role::kOutput;
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") {
    return tied_output ? Role::kOutput : Role::kEmbedding;
  }
  // A fused matrix is as sensitive as its part for the values.
  for (const std::string_view part : {"attn_qkv.weight", "attn_kv_b.weight", "attn_v.weight"}) {
    if (holds(name, part)) return Role::kValues;
  }
  if (holds(name, "attn_k.weight")) return Role::kKeys;
  if (holds(name, "attn_output.weight")) return Role::kAttnOutput;
  return holds(name, "ffn_down") ? Role::kDown : Role::kOther;
}

// N of "blk.N."; 0 where a name has no layer.
int layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int layer = 0;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

bool gets_more_bits(int layer, int layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

bool applies(When when, int layer, const RecipeFacts& facts) {
  switch (when) {
    case When::kAlways:
      return true;
    case When::kFirst2:
      return layer < 2;
    case When::kFirst4:
      return layer < 4;
    case When::kFirst16th:
      return layer < facts.layers / 16;
    case When::kFirst8th:
      return layer < facts.layers / 8;
    case When::kFirst8thIf:
      return layer < facts.layers / 8 && facts.has_weights;
    case When::kFirst8thUnless:
      return layer < facts.layers / 8 && !facts.has_weights;
    case When::kMoreBits:
      return gets_more_bits(layer, facts.layers);
    case When::kSharedKv:
      return facts.heads_per_kv >= 4;
    case When::kEightExperts:
      return facts.experts == 8;
  }
  return false;
}

// The llama and qwen2 models of 80 layers share each value head among eight query heads: a small
// matrix that much depends on.
bool has_small_values(const RecipeFacts& facts) {
  const bool family = facts.architecture == "llama" || facts.architecture == "qwen2";
  return family && facts.layers == 80 && facts.heads_per_kv > 1;
}

DType by_rules(const Recipe& recipe, const RecipeFacts& facts, Role role, int layer) {
  for (const Rule& rule : kRules) {
    if (rule.recipe == recipe.name && rule.role == role && applies(rule.when, layer, facts)) {
      return rule.type;
    }
  }
  return recipe.base;
}

DType wished_type(const Recipe& recipe, const RecipeFacts& facts, std::string_view name,
                  const std::vector<std::size_t>& shape) {
  const Role role = role_of(name, facts.tied_output);
  if (recipe.name == "mxfp4_moe") {  // experts are stacked: [experts, N, K]
    const bool experts = role != Role::kOutput && shape.size() == 3 && shape[0] > 1;
    return experts ? DType::kMXFP4 : DType::kQ8_0;
  }
  if (role == Role::kOutput) {
    return recipe.base == DType::kQ8_0 ? DType::kQ8_0 : DType::kQ6_K;
  }
  // Next to eight experts these matrices are small.
  if (facts.experts == 8 && (role == Role::kValues || role == Role::kKeys)) return DType::kQ8_0;
  const DType type = by_rules(recipe, facts, role, layer_of(name));
  const bool raised = role == Role::kValues && has_small_values(facts) &&
                      (type == DType::kQ3_K || type == DType::kQ4_K);
  return raised ? DType::kQ5_K : type;
}

bool is_mixed(const Recipe& recipe) {
  return dtype_info(recipe.base).block_size > 1 && recipe.name != "mxfp4";
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// The first value of a key that holds one for each layer or one for all; 0 where it is missing.
std::int64_t first_of(const Metadata& metadata, const std::string& key) {
  const MetadataValue* value = metadata.find(key);
  if (value == nullptr) return 0;
  if (!value->is_array) return metadata.find_int(key, 0).value_or(0);
  const auto values = metadata.find_int_array(key, 0);
  return values && !values->empty() ? values->front() : 0;
}

}  // namespace

RecipeFacts recipe_facts(const GgufFile& file) {
  constexpr std::uint64_t kMost = 1u << 20;
  const Metadata& metadata = file.metadata();
  RecipeFacts facts;
  facts.architecture = std::string(metadata.find_string("general.architecture").value_or(""));
  const std::string prefix = facts.architecture + '.';
  facts.layers = static_cast<int>(metadata.find_uint(prefix + "block_count", kMost).value_or(1));
  facts.layers = std::max(facts.layers, 1);
  facts.experts = static_cast<int>(metadata.find_uint(prefix + "expert_count", kMost).value_or(0));
  const std::int64_t heads = first_of(metadata, prefix + "attention.head_count");
  const std::int64_t kv_heads = first_of(metadata, prefix + "attention.head_count_kv");
  if (kv_heads > 0) facts.heads_per_kv = static_cast<int>(heads / kv_heads);
  facts.tied_output = file.find_tensor("output.weight") == nullptr;
  return facts;
}

std::span<const Recipe> recipes() { return kRecipes; }

const Recipe& find_recipe(std::string_view name) {
  std::string asked = lower(name);
  for (const Alias& alias : kAliases) {
    if (asked == alias.name) asked = alias.recipe;
  }
  std::string known;
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == asked) return recipe;
    known += known.empty() ? "" : ", ";
    known += recipe.name;
  }
  throw InvalidArgument(str("unknown type ", quoted(name), "; known are ", known));
}

bool is_weight_matrix(std::string_view name, const std::vector<std::size_t>& shape) {
  std::size_t ones = 0;
  while (ones < shape.size() && shape[ones] == 1) ++ones;
  if (shape.size() - ones < 2 || !name.ends_with("weight")) return false;
  return std::none_of(std::begin(kNeverQuantized), std::end(kNeverQuantized),
                      [&](std::string_view part) { return holds(name, part); });
}

TypeChoice recipe_type(const Recipe& recipe, const RecipeFacts& facts, std::string_view name,
                       const std::vector<std::size_t>& shape, bool pure) {
  if (!is_weight_matrix(name, shape)) return {DType::kF32, false};
  const bool mixed = !pure && is_mixed(recipe);
  const DType wished = mixed ? wished_type(recipe, facts, name, shape) : recipe.base;
  const DType type = type_for_rows(wished, shape.back());
  return {type, type != wished};
}

DType type_for_rows(DType type, std::size_t cols) {
  while (cols % dtype_info(type).block_size != 0) {
    const auto* found = std::find_if(std::begin(kFallbacks), std::end(kFallbacks),
                                     [&](const Fallback& one) { return one.type == type; });
    type = found == std::end(kFallbacks) ? DType::kF16 : found->simpler;
  }
  return type;
}

}  // namespace specdec
