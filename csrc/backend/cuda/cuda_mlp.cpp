// Feed-forward blocks other than the plain gated one: biases, other activations, mixtures of
// experts. A mixture runs its experts one after the other, each over the rows that chose it; the
// host learns from the device which these are.
#include <algorithm>
#include <array>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/product_input.h"
#include "backend/expert_rule.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

const float* part_of(const float* bias, std::size_t matrix, std::size_t size) {
  return bias == nullptr ? nullptr : bias + matrix * size;
}

// The turns [rows, used] of a pass with their experts, ordered by expert, then by row.
struct Turns {
  std::vector<int> slots;   // of each turn, its place in that order
  std::vector<int> counts;  // of each expert
};

Turns order_turns(const std::vector<int>& ids, std::size_t experts) {
  Turns turns{std::vector<int>(ids.size()), std::vector<int>(experts, 0)};
  for (const int id : ids) ++turns.counts[static_cast<std::size_t>(id)];
  std::vector<int> next(experts, 0);
  for (std::size_t e = 1; e < experts; ++e) next[e] = next[e - 1] + turns.counts[e - 1];
  for (std::size_t turn = 0; turn < ids.size(); ++turn) {
    turns.slots[turn] = next[static_cast<std::size_t>(ids[turn])]++;
  }
  return turns;
}

}  // namespace

void CudaBackend::run_mlp(CudaWorkspace& ws, std::int32_t rows, const float* x,
                          const MlpWeights& weights, std::size_t matrix, float* out) const {
  const Weight &up_weight = matrix_of(*weights.up, matrix),
               &down = matrix_of(*weights.down, matrix);
  const auto ffn = static_cast<int>(up_weight.rows()), width = static_cast<int>(down.rows());
  const std::int64_t count = static_cast<std::int64_t>(rows) * ffn;
  float* up = ws.get<float>(Area::kUp, static_cast<std::size_t>(count));  // [M, F]
  const auto add = [&](const float* bias, int cols, float* to) {
    if (bias == nullptr) return;
    queue_add_bias(ws.stream(), rows, cols, to,
                   part_of(bias, matrix, static_cast<std::size_t>(cols)));
  };
  ProductInput input(ws, rows, x, uploads_);
  float* gate = nullptr;
  if (weights.gate != nullptr) {
    gate = ws.get<float>(Area::kGate, static_cast<std::size_t>(count));
    input.multiply(
        std::array{Product{&matrix_of(*weights.gate, matrix), gate}, Product{&up_weight, up}});
    add(weights.gate_bias, ffn, gate);
  } else {
    SPECDEC_CHECK(weights.activation == Activation::kGelu, "an MLP without a gate is GELU's");
    input.multiply(std::array{Product{&up_weight, up}});
  }
  add(weights.up_bias, ffn, up);
  queue_activate(ws.stream(), weights.activation, count, gate, up);
  ProductInput(ws, rows, up, uploads_).multiply(std::array{Product{&down, out}});
  add(weights.down_bias, width, out);
}

void CudaBackend::expert_mlp(Workspace& workspace, std::int32_t rows, const float* x,
                             const ExpertWeights& weights, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows <= 0) return;
  const auto m = static_cast<std::size_t>(rows), used = static_cast<std::size_t>(weights.used);
  const std::size_t experts = weights.router->rows(), width = weights.router->cols();
  SPECDEC_CHECK(used >= 1 && used <= experts && weights.mlp.up->matrices() == experts, used, " of ",
                experts, " experts, weights of ", weights.mlp.up->matrices());
  float* logits = ws.get<float>(Area::kExpertLogits, m * experts);
  matmul(ws, rows, x, *weights.router, logits);
  if (weights.router_bias != nullptr) {
    queue_add_bias(ws.stream(), rows, static_cast<int>(experts), logits, weights.router_bias);
  }
  int* ids = ws.get<int>(Area::kExpertIds, m * used);
  float* shares = ws.get<float>(Area::kExpertWeights, m * used);
  queue_choose_experts(ws.stream(), rows, static_cast<int>(experts), weights.used,
                       weights.softmax_of_used, weights.weight_scale, logits, ids, shares);
  std::vector<int> host_ids(m * used);
  ws.receive(host_ids.data(), ids, host_ids.size() * sizeof(int));
  const Turns turns = order_turns(host_ids, experts);
  int* slots = ids;  // has been read
  ws.send(slots, turns.slots.data(), turns.slots.size() * sizeof(int));
  float* input = ws.get<float>(Area::kExpertInput, m * used * width);
  float* output = ws.get<float>(Area::kExpertOutput, m * used * width);
  queue_scatter_rows(ws.stream(), static_cast<int>(m * used), weights.used, static_cast<int>(width),
                     x, slots, input);
  std::size_t first = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    if (turns.counts[e] == 0) continue;
    run_mlp(ws, turns.counts[e], input + first * width, weights.mlp, e, output + first * width);
    first += static_cast<std::size_t>(turns.counts[e]);
  }
  queue_combine_rows(ws.stream(), rows, weights.used, static_cast<int>(width), output, slots,
                     shares, out);
}

}  // namespace specdec::cuda
