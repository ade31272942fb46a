#include "engine/generator.h"

#include <algorithm>

#include "backend/profiling_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

ReadGrowth read_growth(const Model& model) {
  ReadGrowth growth;
  double routed_bytes = 0.0, bytes = 0.0;
  model.visit_reads([&](const Weight& weight, double times, bool routed) {
    const double read = times * stored_bytes(weight);
    bytes += read;
    if (routed) routed_bytes += read;
  });
  if (routed_bytes == 0.0) return growth;
  growth.expert_share = routed_bytes / bytes;
  growth.experts = model.config().experts.count;
  growth.used = model.config().experts.used;
  return growth;
}

}  // namespace

Generator::Generator(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type)
    : session_(std::move(model), n_ctx, kv_type), controller_(read_growth(session_.model())) {}

Generator::Busy::Busy(std::atomic<bool>& flag) : flag_(flag) {
  if (flag_.exchange(true)) {
    throw BusyError(
        "this generator is already executing a request in another thread; wait for it, or use a "
        "generator of its own for each thread");
  }
}

DecodeLoop& Generator::loop() {
  if (!loop_) throw InvalidArgument("no request is running; call begin() first");
  return *loop_;
}

void Generator::begin(std::vector<std::shared_ptr<Drafter>> drafters,
                      std::span<const TokenId> prompt, RequestParams params) {
  const Busy busy(executing_);
  cancel_.clear();
  loop_.reset();
  Drafting drafting{std::move(drafters), {}, &controller_};
  for (const auto& drafter : drafting.drafters) drafting.keys.push_back(key_of(drafter));
  loop_.emplace(session_, std::move(drafting), prompt, std::move(params), cancel_);
}

std::int64_t Generator::key_of(const std::shared_ptr<Drafter>& drafter) {
  const auto same = [&](const std::weak_ptr<Drafter>& known) {
    return !known.owner_before(drafter) && !drafter.owner_before(known);
  };
  const auto found = std::find_if(known_drafters_.begin(), known_drafters_.end(), same);
  const std::int64_t key = found - known_drafters_.begin();
  if (found == known_drafters_.end()) known_drafters_.push_back(drafter);
  return key;
}

void Generator::end() {
  const Busy busy(executing_);
  if (loop_) loop_->end();
}

StepResult Generator::step() {
  const Busy busy(executing_);
  return loop().step();
}

void Generator::cut_output(std::int32_t count, FinishReason reason) {
  const Busy busy(executing_);
  loop().cut_output(count, reason);
}

DecodeStats Generator::stats() const { return loop().stats(); }

void Generator::logits(std::span<const TokenId> tokens, std::int32_t first, float* host_out) {
  const Busy busy(executing_);
  loop_.reset();
  session_.logits(tokens, first, host_out);
}

std::vector<MemoryUse> Generator::memory() const {
  const Model& model = session_.model();
  const ModelState& state = session_.state();
  std::vector<MemoryUse> use;
  for (std::size_t i = 0; i < model.spans().size(); ++i) {
    use.push_back({model.spans()[i].backend->name(), model.weight_bytes(i), state.cache().bytes(i),
                   state.scratch_bytes(i)});
  }
  return use;
}

}  // namespace specdec
