// Feed-forward blocks: one MLP, or a mixture of experts, which is many MLPs over parts of the rows.
// Which parts is known to the device only: launches are sized for whatever the rows may choose, and
// thread blocks without work leave at once.
#include <algorithm>
#include <array>
#include <span>

#include "backend/cuda/block_decode.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/product_input.h"
#include "backend/expert_rule.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// The columns of `rows` rows that go to `used` of `experts` experts each: room for the largest
// case. Of an expert they fill up an octet; no more experts than turns have any.
Columns columns_of_mixture(int rows, int used, int experts) {
  const int turns = rows * used, parts = std::min(turns, experts);
  const int padded = std::min(turns + (kOctet - 1) * parts, octets_of(rows) * kOctet * parts);
  return {octets_of(padded) * kOctet, rows, parts};
}

}  // namespace

void CudaBackend::run_mlps(CudaWorkspace& ws, const Columns& columns, const float* x,
                           const MlpWeights& weights, float* out) const {
  SPECDEC_CHECK(weights.gate != nullptr || weights.activation == Activation::kGelu,
                "an MLP without a gate is GELU's");
  const std::size_t features = weights.up->rows();
  const std::size_t count = static_cast<std::size_t>(columns.count) * features;
  float* up = ws.get<float>(Area::kUp, count);  // [columns, F]
  float* gate = weights.gate == nullptr ? nullptr : ws.get<float>(Area::kGate, count);
  const std::array inputs{Product{weights.up, up}, Product{weights.gate, gate}};
  ProductInput(ws, columns, x, uploads_).multiply(std::span(inputs).first(gate == nullptr ? 1 : 2));
  const Hidden hidden{weights.activation, gate, weights.gate_bias, up, weights.up_bias};
  const Product down{weights.down, out};
  if (is_quantized(weights.down->dtype())) {
    const ActivationView view = ws.activations(columns.count, features);
    queue_activate_quantize(ws.stream(), columns, hidden, view);
    ProductInput(ws, columns.in_place(), view).multiply({&down, 1});
  } else {
    queue_activate(ws.stream(), columns, static_cast<int>(features), hidden, up);
    ProductInput(ws, columns.in_place(), up, uploads_).multiply({&down, 1});
  }
}

void CudaBackend::gated_mlp(Workspace& workspace, std::int32_t rows, const float* x,
                            const MlpWeights& weights, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows <= 0) return;
  run_mlps(ws, columns_of(rows), x, weights, out);
  if (weights.down_bias == nullptr) return;
  queue_add_bias(ws.stream(), rows, static_cast<int>(weights.down->rows()), out, weights.down_bias);
}

void CudaBackend::expert_mlp(Workspace& workspace, std::int32_t rows, const float* x,
                             const ExpertWeights& weights, float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows <= 0) return;
  const auto experts = static_cast<int>(weights.router->rows());
  const auto width = static_cast<int>(weights.router->cols());
  const int used = weights.used;
  SPECDEC_CHECK(used >= 1 && used <= experts && experts <= kMaxExperts &&
                    weights.mlp.up->matrices() == weights.router->rows(),
                used, " of ", experts, " experts, weights of ", weights.mlp.up->matrices());
  const auto turns = static_cast<std::size_t>(rows) * static_cast<std::size_t>(used);
  float* logits = ws.get<float>(Area::kExpertLogits, static_cast<std::size_t>(rows * experts));
  ProductInput(ws, columns_of(rows), x, uploads_)
      .multiply(std::array{Product{weights.router, logits}});
  if (weights.router_bias != nullptr) {
    queue_add_bias(ws.stream(), rows, experts, logits, weights.router_bias);
  }
  int* ids = ws.get<int>(Area::kExpertIds, turns);
  float* shares = ws.get<float>(Area::kExpertWeights, turns);
  queue_choose_experts(ws.stream(), rows, experts, used, weights.softmax_of_used,
                       weights.weight_scale, logits, ids, shares);

  Columns columns = columns_of_mixture(rows, used, experts);
  const auto count = static_cast<std::size_t>(columns.count);
  auto* parts = ws.get<MatrixColumns>(Area::kExpertParts, static_cast<std::size_t>(columns.parts));
  auto* sources = ws.get<ExpertColumn>(Area::kExpertSources, count);
  int* places = ws.get<int>(Area::kExpertPlaces, turns);
  columns.matrices = parts;
  columns.sources = sources;
  queue_share_out(ws.stream(), static_cast<int>(turns), used, experts, ids, columns, parts, sources,
                  places);
  float* outputs = ws.get<float>(Area::kExpertOutput, count * static_cast<std::size_t>(width));
  run_mlps(ws, columns, x, weights.mlp, outputs);
  queue_combine_experts(ws.stream(), rows, used, width, outputs, places, ids, shares,
                        weights.mlp.down_bias, out);
}

}  // namespace specdec::cuda
