// Decides, round by round, whether to draft, with whom and how much: what promises the most tokens
// per second, plain decoding included.
//
// A pure function of what it is told: costs and outcomes come in as numbers, nothing is read from a
// clock, so it can be simulated. What it says changes how long a text takes, never the text.
//
// Never slower than plain decoding, by bookkeeping rather than by trust in its own estimates: an
// account of the time won and lost against plain decoding. A round is drafted only if the account
// can bear its total failure; each request begins with a credit of one plain pass (the first ever
// with one and a half), which grows by 1.5 % of the tokens. So a request loses at most about that
// much, whatever the drafters and costs are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "spec/acceptance_model.h"
#include "spec/cost_model.h"

namespace specdec {

// A drafter that it may use. What was learned of a drafter is kept by key.
struct DrafterTraits {
  std::int64_t key = 0;
  std::int32_t max_draft = 1;
  bool runs_model = false;
};

// A proposal that is there already, of a drafter that costs next to nothing.
struct Offer {
  std::size_t drafter = 0;            // index into the traits
  std::vector<std::int32_t> parents;  // [m], as in Proposal
  std::vector<float> confidences;     // [m], as in Proposal
};

struct Choice {
  static constexpr std::size_t kPlain = static_cast<std::size_t>(-1);
  std::size_t drafter = kPlain;
  std::int32_t length = 0;          // drafted tokens; of a drafter with a model: to be asked for
  std::vector<std::int32_t> nodes;  // of an offer: those to verify, ascending
  bool probe = false;               // made to learn rather than to win
};

struct NodeOutcome {
  std::int32_t depth = 0;    // 0: follows the pending token
  float confidence = -1.0f;  // as in Proposal
  bool stood = false;        // its parent did
};

// What a drafter did in a round, asked for tokens that were verified or not.
struct DrafterOutcome {
  std::size_t drafter = 0;
  double ms = 0.0;            // of proposing
  std::int32_t proposed = 0;  // tokens
  std::int32_t gap = 1;       // tokens committed since it was asked before
  std::int32_t levels = 0;    // of its tree; of a chain as many as tokens
  std::vector<NodeOutcome> nodes;
};

struct RoundOutcome {
  std::int32_t width = 1;   // rows of the verify pass
  std::int32_t depth = 0;   // cached positions before it
  double pass_ms = 0.0;     // the pass and the acceptance
  bool cold = false;        // the first of a request: its time says little
  std::int32_t tokens = 1;  // committed
  std::vector<DrafterOutcome> drafters;
};

class Controller {
 public:
  explicit Controller(const ReadGrowth& reads = {}) : costs_(reads) {}

  // A request begins. What is known of costs and drafters stays.
  void begin(std::vector<DrafterTraits> drafters);

  // Whether to ask the drafters without a model in this round: not where even that does not pay.
  bool asks_lookup() const { return credit() > 0.0; }

  // At most `room` drafted tokens. usable[i] = false: drafter i, with a model, has nothing to say.
  Choice choose(std::int32_t depth, std::int32_t room, std::span<const Offer> offers,
                const std::vector<bool>& usable, std::span<const std::int32_t> gaps);

  void observe(const RoundOutcome& round, bool probe);

  // Milliseconds of a plain pass at this depth; 0 where unknown.
  double plain_ms(std::int32_t depth) const { return costs_.plain_ms(depth); }
  const CostModel& costs() const { return costs_; }

  // In plain passes: what may still be lost.
  double credit() const;

 private:
  struct Learned {
    AcceptanceModel acceptance;
    RunningMedian step{7};      // plain passes per drafted token
    RunningMedian levels{7};    // of the tree by its nodes; 1 for a chain
    RunningMedian catch_up{7};  // plain passes per token of a gap
  };
  struct Option {
    Choice choice;
    double rate = 0.0;  // tokens per plain pass
    double tokens = 0.0, cost = 1.0;
  };
  struct Search;

  void consider_offer(const Offer& offer, Search& search) const;
  void consider_model(std::size_t drafter, std::int32_t gap, Search& search) const;
  void learn(const DrafterOutcome& outcome, double plain);
  double step_cost(const Learned& learned, bool hopeful) const;
  double catch_up_cost(const Learned& learned, std::int32_t gap) const;
  double charge(const RoundOutcome& round, double plain);

  CostModel costs_;
  std::map<std::int64_t, Learned> learned_;
  std::vector<DrafterTraits> drafters_;
  RunningMedian surcharge_{5};  // of passes of several rows: measured by usual cost
  double account_ = 0.0;        // plain passes won in this request, capped
  double probe_loss_ = 0.0;     // tokens that probes lost in it, against the best known choice
  double known_rate_ = 1.0;     // of that choice, in this round
  double tokens_ = 0.0;         // of it
};

}  // namespace specdec
