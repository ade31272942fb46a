// The families of models that this library runs: one table row each, of the features that their
// transformers have. What a row cannot say is read by its function of oddities.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace specdec {

class KeyReader;
struct ModelConfig;

enum class NormKind : std::uint8_t {
  kRms,
  kLayer,  // mean and variance, with a bias
};

// Whether a model has some tensors: a file decides where both are possible.
enum class Has : std::uint8_t { kNever, kMaybe, kAlways };

// Which layers see a sliding window, where the file gives its size.
enum class Windows : std::uint8_t {
  kNone,    // a size is refused
  kListed,  // those that the file lists; a size alone is ignored, as by llama.cpp, because files
            // carry one that their models do not use (Qwen's `use_sliding_window` is false)
  kUsual,   // unless the file lists them: all but the last of every `window_period`; 0: all
};

struct Architecture {
  std::string_view name;  // general.architecture, and the prefix of its keys
  RopeLayout rope_layout = RopeLayout::kInterleaved;
  NormKind norm = NormKind::kRms;
  bool pre_norms = true, post_norms = false;  // before and after attention and MLP
  std::string_view ffn_norm = "ffn_norm";     // what the norm before the MLP is called
  Has qkv_bias = Has::kNever;
  Has output_bias = Has::kNever;  // of the attention's output projection
  Has mlp_bias = Has::kNever;
  QkNorm qk_norm = QkNorm::kNone;
  Activation activation = Activation::kSilu;
  bool gated = true;      // has a gate beside `up`
  bool fused_up = false;  // ffn_up holds the gate's rows, then its own
  Windows windows = Windows::kNone;
  std::int32_t window_period = 0;
  bool unscaled_local_rope = false;  // layers with a window rotate without context extension
  double local_base = 0.0;           // their usual base; 0: that of the others
  Has experts = Has::kNever;         // mixtures, as expert_count says
  bool softmax_of_used = false;      // see ExpertWeights; norm_top_k_prob overrules it
  bool shared_expert = false;        // one that all rows go to, behind a sigmoid gate
  bool expert_bias = false;          // of router and experts
  bool sinks = false;
  void (*read_oddities)(const KeyReader&, ModelConfig&) = nullptr;
};

// Null for a name that is not supported.
const Architecture* find_architecture(std::string_view name);

// Their names, in the table's order.
std::vector<std::string> supported_architectures();

}  // namespace specdec
