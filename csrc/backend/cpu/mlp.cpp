// Feed-forward blocks: one MLP, or a mixture of experts, which is many MLPs over parts of the rows.
// The input is quantised once; one parallel region makes the hidden features and prepares them for
// `down`, a second one multiplies with that.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "backend/expert_rule.h"
#include "core/error.h"

namespace specdec {
namespace {

void check_mlp(const MlpWeights& weights) {
  const Weight &up = *weights.up, &down = *weights.down;
  SPECDEC_CHECK(down.cols() == up.rows() && down.matrices() == up.matrices(), "an MLP of ",
                up.rows(), " and ", down.cols(), " features");
  if (weights.gate == nullptr) {
    SPECDEC_CHECK(weights.activation == Activation::kGelu, "an MLP without a gate is GELU's");
    return;
  }
  SPECDEC_CHECK(weights.gate->rows() == up.rows() && weights.gate->matrices() == up.matrices(),
                "an MLP of ", weights.gate->rows(), " and ", up.rows(), " features");
}

// The turns of a pass's rows with their experts, ordered by expert, then by row.
struct Routing {
  std::span<const MatrixRows> parts;  // of the experts that have any
  const std::int32_t* slots;          // [M, used]: the turn's place in that order
  const float* weights;               // [M, used], by ascending expert id
};

// logits [M, X]
Routing route(CpuWorkspace& ws, std::size_t rows, std::size_t experts, const ExpertWeights& mixture,
              const float* logits) {
  const auto used = static_cast<std::size_t>(mixture.used);
  std::int32_t* ids = ws.get<std::int32_t>(Scratch::kExpertIds, rows * used);
  float* weights = ws.get<float>(Scratch::kExpertWeights, rows * used);
  std::int32_t* slots = ws.get<std::int32_t>(Scratch::kExpertSlots, rows * used);
  MatrixRows* parts = ws.get<MatrixRows>(Scratch::kExpertBatches, experts);
  for (std::size_t e = 0; e < experts; ++e) parts[e] = {e, 0, 0};
  for (std::size_t i = 0; i < rows; ++i) {
    choose_experts(logits + i * experts, static_cast<std::int32_t>(experts), mixture.used,
                   mixture.softmax_of_used, mixture.weight_scale, ids + i * used,
                   weights + i * used);
    for (std::size_t j = 0; j < used; ++j) ++parts[ids[i * used + j]].rows;
  }
  for (std::size_t e = 1; e < experts; ++e) parts[e].first = parts[e - 1].first + parts[e - 1].rows;
  for (std::size_t turn = 0; turn < rows * used; ++turn) {
    slots[turn] = static_cast<std::int32_t>(parts[ids[turn]].first++);
  }
  for (std::size_t e = 0; e < experts; ++e) parts[e].first -= parts[e].rows;
  MatrixRows* end =
      std::remove_if(parts, parts + experts, [](const MatrixRows& part) { return part.rows == 0; });
  return {{parts, end}, slots, weights};
}

}  // namespace

void CpuBackend::activate(const MlpWeights& weights, std::size_t bias_at, std::size_t count,
                          float* gate, float* up, float* out) const {
  if (weights.up_bias != nullptr) kernels_.add(up, weights.up_bias + bias_at, count);
  if (weights.gate == nullptr) return kernels_.gelu(up, count, out);
  if (weights.gate_bias != nullptr) kernels_.add(gate, weights.gate_bias + bias_at, count);
  switch (weights.activation) {
    case Activation::kSilu:
      return kernels_.silu_mul(gate, up, count, out);
    case Activation::kGelu:
      return kernels_.gelu_mul(gate, up, count, out);
    case Activation::kClampedSwiglu:
      return kernels_.clamped_swiglu(gate, up, count, out);
  }
  throw InternalError("unknown activation");
}

void CpuBackend::run_mlps(CpuWorkspace& ws, std::span<const MatrixRows> parts, const float* x,
                          const MlpWeights& weights, float* out) const {
  check_mlp(weights);
  const CpuWeight &up = as_cpu(*weights.up), &down = as_cpu(*weights.down);
  const CpuWeight& gate = weights.gate == nullptr ? up : as_cpu(*weights.gate);
  const std::size_t hidden_dim = up.rows(), rows = parts.back().first + parts.back().rows;
  MatmulJob inputs[2] = {{&up}, {&gate}};
  prepare_inputs(ws, parts, x, inputs, weights.gate == nullptr ? 1 : 2);
  const bool packed_down = down.layout() != nullptr;
  const std::size_t down_blocks = down.blocks();
  ActBlock* acts =
      packed_down ? ws.get<ActBlock>(Scratch::kHiddenActs, rows * down_blocks) : nullptr;
  float* hidden = packed_down ? nullptr : ws.get<float>(Scratch::kHidden, rows * hidden_dim);

  // A task computes whole blocks of 32 hidden features, so it can quantise them for `down` itself.
  static_assert(kGroupRows % kActBlockSize == 0);
  const std::size_t wanted =
      task_groups(up.groups() * parts.size(), kGroupRows * 2 * up.source_row_bytes());
  const std::size_t step = std::min(wanted, up.groups()), width = step * kGroupRows;
  const std::size_t tasks = (up.groups() + step - 1) / step;
  pool_->parallel_for(parts.size() * tasks, [&](std::size_t task, int slot) {
    const MatrixRows& part = parts[task / tasks];
    const std::size_t begin = task % tasks * step, end = std::min(begin + step, up.groups());
    const std::size_t first = begin * kGroupRows;
    const std::size_t count = std::min(end * kGroupRows, hidden_dim) - first;
    float* up_out = ws.get_for_thread<float>(slot, 2 * part.rows * width);
    float* gate_out = up_out + part.rows * width;
    for (std::size_t i = 0; i < (weights.gate == nullptr ? 1u : 2u); ++i) {
      MatmulJob job = inputs[i].of(part);
      job.out = i == 0 ? up_out : gate_out;
      job.out_stride = width;
      job.first_row = first;
      multiply_groups(job, part.rows, begin, end);
    }
    const ColumnTiles tiles(part.rows, static_cast<std::size_t>(kernels_.tile_cols));
    for (std::size_t tile = 0; tile < tiles.count; ++tile) {
      for (std::size_t c = 0; c < tiles.width(tile); ++c) {
        const std::size_t row = tiles.first(tile) + c;
        float* h =
            packed_down ? up_out + row * width : hidden + (part.first + row) * hidden_dim + first;
        activate(weights, part.matrix * hidden_dim + first, count, gate_out + row * width,
                 up_out + row * width, h);
        if (!packed_down) continue;
        ActBlock* block = acts + (part.first + tiles.first(tile)) * down_blocks +
                          first / kActBlockSize * tiles.width(tile) + c;
        kernels_.quantize_row(h, count / kActBlockSize, down.layout()->act, block,
                              tiles.width(tile));
      }
    }
  });
  MatmulJob job{&down, nullptr, acts, out, down.rows()};
  if (!packed_down) prepare_input(ws, Scratch::kHiddenActs, parts, hidden, &job);
  multiply_parts(job, parts);
  if (weights.down_bias == nullptr) return;
  for (const MatrixRows& part : parts) {
    const float* bias = weights.down_bias + part.matrix * down.rows();
    for (std::size_t row = part.first; row < part.first + part.rows; ++row) {
      kernels_.add(out + row * down.rows(), bias, down.rows());
    }
  }
}

void CpuBackend::gated_mlp(Workspace& ws, std::int32_t rows, const float* x,
                           const MlpWeights& weights, float* out) const {
  if (rows <= 0) return;
  const MatrixRows all{0, 0, static_cast<std::size_t>(rows)};
  run_mlps(as_cpu(ws), {&all, 1}, x, weights, out);
}

void CpuBackend::expert_mlp(Workspace& ws, std::int32_t rows, const float* x,
                            const ExpertWeights& weights, float* out) const {
  if (rows <= 0) return;
  CpuWorkspace& scratch = as_cpu(ws);
  const auto m = static_cast<std::size_t>(rows), used = static_cast<std::size_t>(weights.used);
  const std::size_t experts = weights.router->rows(), width = weights.router->cols();
  SPECDEC_CHECK(used >= 1 && used <= experts && weights.mlp.up->matrices() == experts, used, " of ",
                experts, " experts, weights of ", weights.mlp.up->matrices());
  float* logits = scratch.get<float>(Scratch::kExpertLogits, m * experts);
  matmul(ws, rows, x, *weights.router, logits);
  if (weights.router_bias != nullptr) {
    add_bias(ws, rows, static_cast<std::int32_t>(experts), logits, weights.router_bias);
  }
  const Routing routing = route(scratch, m, experts, weights, logits);
  float* input = scratch.get<float>(Scratch::kExpertInput, m * used * width);
  float* output = scratch.get<float>(Scratch::kExpertOutput, m * used * width);
  for (std::size_t turn = 0; turn < m * used; ++turn) {
    std::copy_n(x + turn / used * width, width,
                input + static_cast<std::size_t>(routing.slots[turn]) * width);
  }
  run_mlps(scratch, routing.parts, input, weights.mlp, output);
  for_rows(m, m * used * width, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      std::fill_n(out + i * width, width, 0.0f);
      for (std::size_t j = i * used; j < (i + 1) * used; ++j) {
        kernels_.add_scaled(out + i * width,
                            output + static_cast<std::size_t>(routing.slots[j]) * width, width,
                            routing.weights[j]);
      }
    }
  });
}

}  // namespace specdec
