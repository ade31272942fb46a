// Asks the drafters of a request, under the controller: times them, passes what they offer to it,
// does what it chooses, and tells it what came of it. The clock is read here and nowhere above.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "spec/controller.h"
#include "spec/drafter.h"

namespace specdec {

class DraftArbiter {
 public:
  // keys[i]: under which the controller remembers drafter i from one request to the next.
  DraftArbiter(Controller& controller, std::vector<std::shared_ptr<Drafter>> drafters,
               const std::vector<std::int64_t>& keys, std::size_t prompt_size);

  // What to verify in this round, of at most `room` tokens. The adaptive drafters are weighed
  // against each other and against plain decoding; those of fixed length are asked in order where
  // nothing of that pays.
  Proposal propose(const DraftContext& context, std::int32_t room);

  // What a round took in milliseconds besides the asking: the verify pass, and before it the wait
  // for tokens that a drafter was still drawing on the device.
  struct RoundTimes {
    double pass, wait;
  };
  // The round is over: of `proposal`, the nodes of `path` stood; `before` of the committed tokens
  // were there when it was proposed.
  void observe(const Proposal& proposal, std::span<const std::int32_t> path,
               std::span<const TokenId> tokens, std::size_t before, RoundTimes ms);

  // Milliseconds of a plain pass as far as known, else 0.
  double plain_ms(std::size_t depth) const {
    return controller_.plain_ms(static_cast<std::int32_t>(depth));
  }

 private:
  // A proposal of this round, verified as a whole, in part or not at all.
  struct Asked {
    std::size_t drafter;
    Proposal proposal;
    double ms;
    std::int32_t gap;
    std::vector<std::int32_t> verified;  // [m] its node in what was verified, -1: it was not
  };

  Asked ask(std::size_t drafter, const DraftContext& context, std::int32_t budget);
  std::optional<Proposal> propose_adaptive(const DraftContext& context, std::int32_t room);
  Proposal take(Asked& asked, std::span<const std::int32_t> nodes) const;

  Controller& controller_;
  std::vector<std::shared_ptr<Drafter>> drafters_;
  std::vector<std::size_t> adaptive_;       // the controller's drafters, as indices of drafters_
  std::vector<std::size_t> asked_at_size_;  // [drafters_] length of the text when asked before
  std::vector<Asked> asked_;                // in this round
  bool probe_ = false;
  bool first_round_ = true;
};

}  // namespace specdec
