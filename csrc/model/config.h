// What a model's metadata says about its computation, validated. An unknown value of a key that
// changes the computation is an error, never a default.
#pragma once

#include <cstdint>
#include <string>

#include "backend/backend.h"
#include "gguf/reader.h"

namespace specdec {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kYarn };

// Rotary position embedding (arXiv 2104.09864) and its context extensions.
struct RopeConfig {
  std::int32_t dims = 0;  // leading elements of a head that rotate
  double base = 10000.0;
  RopeLayout layout = RopeLayout::kInterleaved;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;  // context extension: scaled length / original length
  // YaRN only (arXiv 2309.00071):
  std::int32_t original_context = 0;
  double attention_factor = 1.0;
  double beta_fast = 32.0, beta_slow = 1.0;
  double log_multiplier =
      0.0;  // where not 0, the magnitude is divided by 1 + 0.1 * it * log(factor)
};

struct ModelConfig {
  std::string architecture;     // "llama"
  std::string name;             // general.name, or ""
  std::int32_t layers = 0;      // L
  std::int32_t width = 0;       // E
  std::int32_t ffn_width = 0;   // F
  std::int32_t heads = 0;       // H
  std::int32_t kv_heads = 0;    // Hkv
  std::int32_t head_dim = 0;    // D
  std::int32_t vocab_rows = 0;  // V: rows of the embedding and of the logits, padding included
  std::int32_t vocab = 0;       // real tokens; ids [vocab, vocab_rows) are padding, never sampled
  std::int32_t trained_context = 0;
  float rms_eps = 0.0f;
  RopeConfig rope;

  AttentionShape attention_shape() const;
};

class KeyReader;

// The keys that describe transformer layers; the vocabulary is left at 0. Throws GgufError naming
// the key.
ModelConfig read_layer_config(const KeyReader& keys);

// Throws GgufError naming the key.
ModelConfig read_config(const GgufFile& file);

}  // namespace specdec
