// What a model's metadata says about its computation, validated. An unknown value of a key that
// changes the computation is an error, never a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "gguf/reader.h"
#include "model/architectures.h"

namespace specdec {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kYarn };

// Rotary position embedding (arXiv 2104.09864) and its context extensions.
struct RopeConfig {
  std::int32_t dims = 0;  // leading elements of a head that rotate
  double base = 10000.0;
  RopeLayout layout = RopeLayout::kInterleaved;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;  // context extension: scaled length / original length
  double attention_factor = 1.0;
  // From this n_ctx on long-rope's long factors are used. Also YaRN's (arXiv 2309.00071):
  std::int32_t original_context = 0;
  double beta_fast = 32.0, beta_slow = 1.0;
  bool yarn_whole_pairs = true;  // its ramp begins and ends at whole pairs
  double log_multiplier =
      0.0;  // where not 0, the magnitude is divided by 1 + 0.1 * it * log(factor)

  // The same without an extension, with another base.
  RopeConfig unscaled(double other_base) const {
    RopeConfig rope;
    rope.dims = dims;
    rope.layout = layout;
    rope.base = other_base;
    return rope;
  }
};

// A mixture of experts; count 0: none.
struct ExpertConfig {
  std::int32_t count = 0;         // X
  std::int32_t used = 0;          // of each row
  std::int32_t ffn_width = 0;     // F of an expert
  std::int32_t shared_width = 0;  // F of the shared expert; 0: none
  bool softmax_of_used = false;   // see ExpertWeights
  float weight_scale = 1.0f;
};

struct ModelConfig {
  std::string architecture;              // "llama"
  const Architecture* traits = nullptr;  // its row of the table
  std::string name;                      // general.name, or ""
  std::int32_t layers = 0;               // L
  std::int32_t width = 0;                // E
  std::int32_t ffn_width = 0;            // F; 0 where all layers are mixtures
  std::int32_t heads = 0;                // H
  std::int32_t kv_heads = 0;             // Hkv
  std::int32_t head_dim = 0;             // D
  std::int32_t vocab_rows = 0;  // V: rows of the embedding and of the logits, padding included
  std::int32_t vocab = 0;       // real tokens; ids [vocab, vocab_rows) are padding, never sampled
  std::int32_t trained_context = 0;
  float norm_eps = 0.0f;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of the layers with a window, where it differs
  ExpertConfig experts;

  // What the file holds of the tensors that not every model of the architecture has.
  bool fused_qkv = false;  // attn_qkv instead of attn_q, attn_k, attn_v
  bool qkv_bias = false, output_bias = false, mlp_bias = false;

  std::int32_t window = 0;       // positions that a local layer's rows see; 0: there are none
  std::vector<bool> local;       // [L] has a window
  std::vector<bool> rotated;     // [L] false: no positions
  float attention_scale = 0.0f;  // of the scores; 0: 1 / sqrt(D)
  float score_cap = 0.0f, logit_cap = 0.0f;  // 0: none
  float embedding_scale = 1.0f, residual_scale = 1.0f, logit_scale = 1.0f;
  // Queries are multiplied by 1 + growth * log(1 + floor(position / length)); 0: they are not.
  double query_growth = 0.0;
  std::int32_t query_growth_length = 0;

  // Without the sinks, which are a layer's weights.
  AttentionShape attention_shape(std::int32_t layer) const;
  bool is_local(std::int32_t layer) const { return local[static_cast<std::size_t>(layer)]; }
};

class KeyReader;

// The keys that describe transformer layers of a family; the vocabulary is left at 0. Throws
// GgufError naming the key.
ModelConfig read_layer_config(const KeyReader& keys, const GgufFile& file,
                              const Architecture& traits);

// Throws GgufError naming the key.
ModelConfig read_config(const GgufFile& file);

}  // namespace specdec
