#include "engine/generator.h"

#include "core/error.h"

namespace specdec {

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
  loop_.emplace(session_, std::move(drafters), prompt, std::move(params), cancel_);
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

MemoryUse Generator::memory() const {
  return MemoryUse{session_.model().weight_bytes(), session_.state().cache().bytes(),
                   session_.state().activations().bytes()};
}

}  // namespace specdec
