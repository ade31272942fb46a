// The parts of a forward pass that all of them share: a target's, a draft model's, a drafting
// head's.
#pragma once

#include <cstdint>

#include "model/model.h"
#include "model/transformer.h"

namespace specdec {

// out = norm(x), as the model norms. x, out [rows, E], may be the same
void run_norm(const Backend& backend, Workspace& ws, const ModelConfig& config, const Norm& norm,
              std::int32_t rows, const float* x, float* out);

// A layer's number in the model, and in the part of the cache that holds it.
struct LayerPlace {
  std::int32_t layer = 0, cached = 0;
};

// hidden += attention(input); hidden += mlp(norm(hidden)), where `input` [M, in features of the
// projections] is backend memory, usually the norm of hidden.
void run_block(const Backend& backend, const ModelConfig& config, const LayerWeights& weights,
               LayerPlace place, const Pass& pass, const float* input, Activations& act);

// Raw products with an output matrix become logits: their scale and cap. [count]
void finish_logits(const Backend& backend, Workspace& ws, const ModelConfig& config,
                   std::int64_t count, float* logits);

// act.logits [count, V] = output norm(last `count` rows of hidden)
void run_head(const Backend& backend, const ModelConfig& config, const Norm& norm,
              const Weight& output, std::int32_t count, const Pass& pass, Activations& act);

}  // namespace specdec
