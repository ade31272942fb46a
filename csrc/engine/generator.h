// What the bindings hold: a target session and the request running on it. Pull-based: step() does
// one pass and returns; no worker thread, no queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/cancel.h"
#include "engine/decode_loop.h"
#include "engine/session.h"

namespace specdec {

// Of one span of the target.
struct MemoryUse {
  std::string backend;
  std::size_t target_weights = 0, target_cache = 0, target_scratch = 0;
};

class Generator {
 public:
  Generator(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type);

  // Starts a request, ending the one before it. Throws BusyError if another thread is in a call.
  void begin(std::vector<std::shared_ptr<Drafter>> drafters, std::span<const TokenId> prompt,
             RequestParams params);
  StepResult step();

  // The request is over: drafters that keep something of it do so now. The next begin() does not
  // need it.
  void end();

  void cut_output(std::int32_t count, FinishReason reason);
  DecodeStats stats() const;

  // Ends the running request at the next layer of its pass. Callable from any thread.
  void cancel() { cancel_.set(); }

  // See Session::logits. Ends the running request.
  void logits(std::span<const TokenId> tokens, std::int32_t first, float* host_out);

  const Model& model() const { return session_.model(); }
  Session& session() { return session_; }
  const Session& session() const { return session_; }
  std::int32_t n_ctx() const { return session_.n_ctx(); }
  std::vector<MemoryUse> memory() const;  // one for each span

 private:
  // Held during each call; a second caller gets BusyError instead of a race.
  class Busy {
   public:
    explicit Busy(std::atomic<bool>& flag);
    ~Busy() { flag_.store(false); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    std::atomic<bool>& flag_;
  };

  DecodeLoop& loop();
  const DecodeLoop& loop() const { return const_cast<Generator*>(this)->loop(); }

  std::int64_t key_of(const std::shared_ptr<Drafter>& drafter);

  Session session_;
  // What was learned about costs and drafters outlives a request.
  Controller controller_;
  std::vector<std::weak_ptr<Drafter>> known_drafters_;  // index: the controller's key
  CancelFlag cancel_;
  std::optional<DecodeLoop> loop_;
  std::atomic<bool> executing_{false};
};

}  // namespace specdec
