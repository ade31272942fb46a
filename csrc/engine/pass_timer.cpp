#include "engine/pass_timer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "backend/profiling_backend.h"
#include "core/error.h"
#include "core/rng.h"

namespace specdec {
namespace {

constexpr std::int32_t kFillChunk = 512;  // tokens per pass while the cache is filled

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

// Tells a profile which of the plain products is which.
void name_weights(const Model& model) {
  const auto* profile = dynamic_cast<const ProfilingBackend*>(&model.backend());
  if (profile == nullptr) return;
  for (const LayerWeights& layer : model.layers()) {
    profile->name_weight(*layer.attn_output, "attn_output");
  }
  profile->name_weight(model.output(), "head");
}

}  // namespace

PassTimer::PassTimer(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type)
    : state_(std::move(model), n_ctx, kv_type) {
  name_weights(state_.model());
  const auto vocab = static_cast<std::uint64_t>(state_.model().config().vocab);
  for (std::int32_t i = 0; i < n_ctx; ++i) {
    const std::uint64_t bits =
        random_u64({0, static_cast<std::uint64_t>(i), RngPurpose::kTargetDraw, 0});
    tokens_.push_back(static_cast<TokenId>(bits % vocab));
  }
}

void PassTimer::check_room(std::int32_t rows) const {
  if (rows < 1 || rows > state_.n_ctx() - depth()) {
    throw InvalidArgument(str("a pass of ", rows, " rows at depth ", depth(), " in a cache of ",
                              state_.n_ctx(), " positions"));
  }
}

// A pass over text rows [first, first + rows).
void PassTimer::run(std::int32_t first, std::int32_t rows, std::int32_t logit_rows) {
  const auto text = std::span<const TokenId>(tokens_).subspan(static_cast<std::size_t>(first),
                                                              static_cast<std::size_t>(rows));
  state_.run(text, {}, {logit_rows}, nullptr);
}

void PassTimer::wait() {
  float nothing = 0.0f;
  state_.backend().download(state_.workspace(), &nothing, nullptr, 0);
}

void PassTimer::fill(std::int32_t depth) {
  if (depth < 0 || depth >= state_.n_ctx()) {
    throw InvalidArgument(str("depth ", depth, " in a cache of ", state_.n_ctx(), " positions"));
  }
  if (this->depth() > depth) state_.cache().truncate(depth);
  while (this->depth() < depth) run(this->depth(), std::min(kFillChunk, depth - this->depth()), 0);
  wait();
}

// Logits of the last pass.
std::vector<float> PassTimer::logits_of(std::int32_t rows) {
  std::vector<float> host(static_cast<std::size_t>(rows) *
                          static_cast<std::size_t>(state_.model().config().vocab_rows));
  state_.backend().download(state_.workspace(), host.data(), state_.logits(0),
                            host.size() * sizeof(float));
  return host;
}

void PassTimer::check_widths(std::span<const std::int32_t> widths) {
  if (widths.empty()) return;
  const std::int32_t base = depth(), widest = *std::max_element(widths.begin(), widths.end());
  check_room(widest);
  std::vector<float> expected;
  for (std::int32_t i = 0; i < widest; ++i) {
    run(base + i, 1, 1);
    const std::vector<float> row = logits_of(1);
    expected.insert(expected.end(), row.begin(), row.end());
  }
  state_.cache().truncate(base);
  for (const std::int32_t width : widths) {
    check_room(width);
    run(base, width, width);
    const std::vector<float> rows = logits_of(width);
    state_.cache().truncate(base);
    if (std::memcmp(rows.data(), expected.data(), rows.size() * sizeof(float)) != 0) {
      throw InternalError(str("a pass of ", width, " tokens at depth ", base,
                              " gives other logits than passes of one token"));
    }
  }
}

std::vector<double> PassTimer::time_passes(std::span<const std::int32_t> widths) {
  const std::int32_t base = depth();
  std::vector<double> times;
  for (const std::int32_t width : widths) {
    check_room(width);
    const auto begin = std::chrono::steady_clock::now();
    run(base, width, width);
    wait();
    times.push_back(milliseconds_since(begin));
    state_.cache().truncate(base);
  }
  return times;
}

double PassTimer::time_verify(std::int32_t width, bool greedy) {
  check_room(width);
  const std::int32_t base = depth(), nodes = width - 1;
  run(base, width, width);
  wait();
  std::vector<std::int32_t> parents(static_cast<std::size_t>(nodes));
  std::iota(parents.begin(), parents.end(), -1);
  VerifyInput input;
  input.logits = state_.logits(0);
  input.row_stride = state_.model().config().vocab_rows;
  input.nodes = nodes;
  input.tokens = tokens_.data() + base + 1;
  input.parents = parents.data();
  input.position = static_cast<std::uint64_t>(base) + 1;
  input.draw.vocab = state_.model().config().vocab;
  input.draw.rule = AcceptRule::kRejection;
  input.draw.filter.temperature = greedy ? 0.0f : 0.8f;
  input.draw.filter.top_k = 40;
  input.draw.filter.top_p = 0.95f;
  const auto begin = std::chrono::steady_clock::now();
  state_.backend().verify(state_.workspace(), input);
  const double time = milliseconds_since(begin);
  state_.cache().truncate(base);
  return time;
}

double PassTimer::time_prefill(std::int32_t tokens, std::int32_t chunk) {
  check_room(tokens);
  if (chunk < 1) throw InvalidArgument(str("a prefill in passes of ", chunk, " tokens"));
  const std::int32_t base = depth();
  const auto begin = std::chrono::steady_clock::now();
  for (std::int32_t done = 0; done < tokens;) {
    const std::int32_t rows = std::min(chunk, tokens - done);
    run(base + done, rows, done + rows == tokens ? 1 : 0);
    done += rows;
  }
  wait();
  const double time = milliseconds_since(begin);
  state_.cache().truncate(base);
  return time;
}

std::vector<TypeTotals> PassTimer::weight_totals() const {
  std::vector<TypeTotals> totals;
  state_.model().visit_reads([&](const Weight& weight, double times, bool) {
    const std::string type(dtype_info(weight.dtype()).name);
    auto found = std::find_if(totals.begin(), totals.end(),
                              [&](const TypeTotals& one) { return one.type == type; });
    if (found == totals.end()) found = totals.insert(totals.end(), TypeTotals{type});
    found->bytes += times * stored_bytes(weight);
    found->multiply_adds +=
        times * static_cast<double>(weight.rows()) * static_cast<double>(weight.cols());
  });
  return totals;
}

}  // namespace specdec
