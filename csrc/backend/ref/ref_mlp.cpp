// Feed-forward blocks: one MLP, or a mixture of experts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/expert_rule.h"
#include "backend/ref/ref_backend.h"
#include "backend/ref/ref_weight.h"
#include "core/error.h"
#include "core/math.h"

namespace specdec {
namespace {

double gelu(double x) {
  return 0.5 * x * (1.0 + ref_tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

double activate(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::kSilu:
      return gate / (1.0 + exp_f64(-gate)) * up;
    case Activation::kGelu:
      return gelu(gate) * up;
    case Activation::kClampedSwiglu: {
      const double g = std::min(gate, 7.0), u = std::clamp(up, -7.0, 7.0);
      return g / (1.0 + exp_f64(-1.702 * g)) * (u + 1.0);
    }
  }
  throw InternalError("unknown activation");
}

// The bias of one matrix of a stack, [size].
const float* bias_of(const float* bias, std::size_t matrix, std::size_t size) {
  return bias == nullptr ? nullptr : bias + matrix * size;
}

// One MLP of the stack; x [M, E], result [M, E]
std::vector<double> run_mlp(std::size_t rows, const float* x, const MlpWeights& weights,
                            std::size_t matrix) {
  const std::size_t ffn = weights.up->rows(), width = weights.down->rows();
  const std::vector<double> up =
      ref_product(rows, x, *weights.up, bias_of(weights.up_bias, matrix, ffn), matrix);
  std::vector<float> hidden(up.size());  // [M, F]
  if (weights.gate == nullptr) {
    SPECDEC_CHECK(weights.activation == Activation::kGelu, "an MLP without a gate is GELU's");
    for (std::size_t i = 0; i < up.size(); ++i) hidden[i] = static_cast<float>(gelu(up[i]));
  } else {
    const std::vector<double> gate =
        ref_product(rows, x, *weights.gate, bias_of(weights.gate_bias, matrix, ffn), matrix);
    for (std::size_t i = 0; i < up.size(); ++i) {
      hidden[i] = static_cast<float>(activate(weights.activation, gate[i], up[i]));
    }
  }
  return ref_product(rows, hidden.data(), *weights.down, bias_of(weights.down_bias, matrix, width),
                     matrix);
}

}  // namespace

void RefBackend::gated_mlp(Workspace&, std::int32_t rows, const float* x, const MlpWeights& weights,
                           float* out) const {
  const std::vector<double> result = run_mlp(static_cast<std::size_t>(rows), x, weights, 0);
  for (std::size_t i = 0; i < result.size(); ++i) out[i] = static_cast<float>(result[i]);
}

void RefBackend::expert_mlp(Workspace&, std::int32_t rows, const float* x,
                            const ExpertWeights& weights, float* out) const {
  const auto m = static_cast<std::size_t>(rows), used = static_cast<std::size_t>(weights.used);
  const std::size_t experts = weights.router->rows(), width = weights.router->cols();
  SPECDEC_CHECK(used >= 1 && used <= experts && weights.mlp.up->matrices() == experts, used, " of ",
                experts, " experts, weights of ", weights.mlp.up->matrices());
  const std::vector<double> scores = ref_product(m, x, *weights.router, weights.router_bias);
  std::vector<float> logits(experts), share(used);
  std::vector<std::int32_t> ids(used);
  for (std::size_t i = 0; i < m; ++i) {
    for (std::size_t e = 0; e < experts; ++e) {
      logits[e] = static_cast<float>(scores[i * experts + e]);
    }
    choose_experts(logits.data(), static_cast<std::int32_t>(experts), weights.used,
                   weights.softmax_of_used, weights.weight_scale, ids.data(), share.data());
    std::vector<double> sum(width, 0.0);
    for (std::size_t j = 0; j < used; ++j) {
      const std::vector<double> part =
          run_mlp(1, x + i * width, weights.mlp, static_cast<std::size_t>(ids[j]));
      for (std::size_t k = 0; k < width; ++k) sum[k] += static_cast<double>(share[j]) * part[k];
    }
    for (std::size_t k = 0; k < width; ++k) out[i * width + k] = static_cast<float>(sum[k]);
  }
}

}  // namespace specdec
