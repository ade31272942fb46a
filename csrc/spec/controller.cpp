#include "spec/controller.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace specdec {
namespace {

// What a request may lose at most, in plain passes: at the start, and per token.
constexpr double kFirstCredit = 1.0, kCreditPerToken = 0.015;
// More where nothing is known yet: the first tries may be disturbed, and must not be the last.
constexpr double kFirstCreditEver = 1.5;
// What it may lose on probes, part of that.
constexpr double kFirstProbes = 1.0, kProbesPerToken = 0.01;
// Winnings that are kept to bear later failures.
constexpr double kMostWinnings = 8.0;
// Gains smaller than this are noise.
constexpr double kLeastGain = 1.05;
// Drafted rounds in a row after which one plain pass is made to know what it costs now: the less
// drafting wins the more it matters to know, and the less it costs.
constexpr double kPlainEveryAtLeast = 6.0, kPlainEveryPerGain = 30.0, kPlainEveryAtMost = 64.0;
// Before measurements: a drafted token of a model, in plain passes, believed and hoped; a token of
// the gap that it has to catch up with, in steps; the share of catching up that one round is
// charged with.
constexpr double kBelievedStep = 0.35, kHopedStep = 0.1, kBelievedCatchUp = 0.125;
constexpr double kCatchUpShare = 0.125;
// A probe of what may be better than the best known has to promise so much more.
constexpr double kLeastPromise = 1.1;
constexpr std::int32_t kSmallGap = 24;
constexpr double kChain = 0.99;  // levels by nodes, at least

}  // namespace

// The best options so far: by what is believed, and by what may be hoped.
struct Controller::Search {
  std::int32_t depth, room;
  double credit, probe_budget;
  Option believed, hoped;

  void try_believed(double tokens, double cost, double worst_loss, auto&& make_choice) {
    const double rate = tokens / cost;
    if (rate <= believed.rate || worst_loss > credit) return;
    believed = {make_choice(), rate, tokens, cost};
  }

  // rate: hoped; tokens, cost: believed.
  void try_hoped(double rate, double tokens, double cost, double worst_loss, auto&& make_choice) {
    if (rate <= hoped.rate || worst_loss > credit || cost - tokens > probe_budget) return;
    hoped = {make_choice(), rate, tokens, cost};
  }
};

void Controller::begin(std::vector<DrafterTraits> drafters) {
  drafters_ = std::move(drafters);
  probe_loss_ = tokens_ = 0.0;
  account_ = costs_.knows_plain() ? 0.0 : kFirstCreditEver - kFirstCredit;
}

double Controller::credit() const { return kFirstCredit + kCreditPerToken * tokens_ + account_; }

double Controller::step_cost(const Learned& learned, bool hopeful) const {
  if (hopeful && learned.step.count() == 0) return kHopedStep;
  return learned.step.value_or(kBelievedStep);
}

// Of the tokens beyond the usual round.
double Controller::catch_up_cost(const Learned& learned, std::int32_t gap) const {
  if (gap <= kSmallGap) return 0.0;
  return learned.catch_up.value_or(kBelievedCatchUp * step_cost(learned, false)) * gap;
}

// The first n of the offered nodes, by their chance to be reached and stand, for the best n. A
// child never has a better chance than its parent, so any n of them are a tree.
void Controller::consider_offer(const Offer& offer, Search& search) const {
  const std::size_t count = offer.parents.size();
  const auto known = learned_.find(drafters_[offer.drafter].key);
  const AcceptanceModel unknown;
  const AcceptanceModel& model = known == learned_.end() ? unknown : known->second.acceptance;
  std::vector<double> chance(count);
  std::vector<std::int32_t> depth(count), order(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t parent = offer.parents[i];
    SPECDEC_CHECK(parent >= -1 && parent < static_cast<std::int32_t>(i), "parent ", parent);
    const std::size_t above = static_cast<std::size_t>(std::max(parent, 0));
    depth[i] = parent < 0 ? 0 : depth[above] + 1;
    const float said = i < offer.confidences.size() ? offer.confidences[i] : -1.0f;
    chance[i] = model.estimate(depth[i], said) * (parent < 0 ? 1.0 : chance[above]);
  }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return chance[static_cast<std::size_t>(a)] > chance[static_cast<std::size_t>(b)];
  });
  double tokens = 1.0;
  const std::size_t most = std::min(count, static_cast<std::size_t>(std::max(search.room, 0)));
  for (std::size_t n = 1; n <= most; ++n) {
    tokens += chance[static_cast<std::size_t>(order[n - 1])];
    const auto choice = [&] {
      Choice made{offer.drafter, static_cast<std::int32_t>(n), {}, false};
      made.nodes.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n));
      std::sort(made.nodes.begin(), made.nodes.end());
      return made;
    };
    const std::int32_t width = static_cast<std::int32_t>(n) + 1;
    const double cost = costs_.passes(width, search.depth);
    search.try_believed(tokens, cost, cost - 1.0, choice);
    const double hoped = tokens / costs_.hopeful_passes(width, search.depth);
    search.try_hoped(hoped, tokens, cost, cost - 1.0, choice);
  }
}

// How many tokens to ask a model for, before it drafts any: the decision must not depend on what
// it draws.
void Controller::consider_model(std::size_t drafter, std::int32_t gap, Search& search) const {
  const auto known = learned_.find(drafters_[drafter].key);
  const Learned unknown;
  const Learned& learned = known == learned_.end() ? unknown : known->second;
  const double catch_up = catch_up_cost(learned, gap);
  const double hope = 1.0 / (2.0 + learned.acceptance.known());
  double tokens = 1.0, hoped_tokens = 1.0, chance = 1.0, hoped_chance = 1.0;
  const std::int32_t most = std::min(search.room, drafters_[drafter].max_draft);
  const double levels = learned.levels.value_or(1.0);  // by nodes
  std::int32_t level = 0;
  // A tree is asked for whole: what stands of a smaller one was not seen.
  for (std::int32_t k = levels < kChain ? std::max(most, 1) : 1; k <= most; ++k) {
    for (; level < std::max(1.0, levels * k); ++level) {
      const double stands = learned.acceptance.estimate(level, -1.0f);
      chance *= stands;
      hoped_chance *= std::min(1.0, stands + hope);
      tokens += chance;
      hoped_tokens += hoped_chance;
    }
    const auto choice = [&] { return Choice{drafter, k, {}, false}; };
    const double pass = costs_.passes(k + 1, search.depth);
    const double steps = k * step_cost(learned, false);
    const double worst = pass + steps + catch_up - 1.0;
    search.try_believed(tokens, pass + steps + kCatchUpShare * catch_up, worst, choice);
    const double hoped_cost =
        costs_.hopeful_passes(k + 1, search.depth) + k * step_cost(learned, true);
    search.try_hoped(hoped_tokens / hoped_cost, tokens, worst + 1.0, worst, choice);
  }
}

Choice Controller::choose(std::int32_t depth, std::int32_t room, std::span<const Offer> offers,
                          const std::vector<bool>& usable, std::span<const std::int32_t> gaps) {
  known_rate_ = 1.0;
  if (!costs_.knows_plain()) return {};
  Search search{depth, room, credit(), kFirstProbes + kProbesPerToken * tokens_ - probe_loss_,
                {},    {}};
  for (const Offer& offer : offers) consider_offer(offer, search);
  for (std::size_t i = 0; i < drafters_.size(); ++i) {
    if (drafters_[i].runs_model && usable[i]) consider_model(i, gaps[i], search);
  }
  const bool pays = search.believed.rate >= kLeastGain;
  const double plain_every =
      kPlainEveryAtLeast + kPlainEveryPerGain * std::max(0.0, search.believed.rate - 1.0);
  if (static_cast<double>(costs_.since_plain()) >= std::min(plain_every, kPlainEveryAtMost)) {
    return {};
  }
  if (pays) known_rate_ = search.believed.rate;
  const double promised = pays ? kLeastPromise * known_rate_ : kLeastGain;
  const double loss = search.hoped.cost * known_rate_ - search.hoped.tokens;
  if (search.hoped.rate >= promised && loss <= search.probe_budget) {
    search.hoped.choice.probe = true;
    return search.hoped.choice;
  }
  return pays ? search.believed.choice : Choice{};
}

void Controller::learn(const DrafterOutcome& outcome, double plain) {
  Learned& learned = learned_[drafters_[outcome.drafter].key];
  for (const NodeOutcome& node : outcome.nodes) {
    learned.acceptance.observe(node.depth, node.confidence, node.stood);
  }
  if (!drafters_[outcome.drafter].runs_model || plain <= 0.0 || outcome.proposed == 0) return;
  learned.levels.add(static_cast<double>(outcome.levels) / outcome.proposed);
  const double passes = outcome.ms / plain;
  if (outcome.gap <= kSmallGap) {
    learned.step.add(passes / outcome.proposed);
  } else {
    const double steps = outcome.proposed * step_cost(learned, false);
    learned.catch_up.add(std::max(0.0, passes - steps) / outcome.gap);
  }
}

// What the pass cost, in plain passes, for the account: what passes of its width usually cost, and
// more where those of late have been dearer than that. One disturbed pass is no loss that drafting
// is to blame for.
double Controller::charge(const RoundOutcome& round, double plain) {
  if (round.width <= 1) return 1.0;
  const double usual = costs_.passes(round.width, round.depth);
  if (plain > 0.0 && !round.cold) surcharge_.add(round.pass_ms / plain / usual);
  return usual * std::max(1.0, surcharge_.value_or(1.0));
}

void Controller::observe(const RoundOutcome& round, bool probe) {
  if (!round.cold) costs_.observe(round.width, round.depth, round.pass_ms);
  const double plain = costs_.plain_ms(round.depth);
  std::vector<bool> asked(drafters_.size(), false);
  double draft_passes = 0.0;
  for (const DrafterOutcome& outcome : round.drafters) {
    asked[outcome.drafter] = true;
    learn(outcome, plain);
    if (plain <= 0.0) continue;
    // A disturbed measurement is no loss that drafting is to blame for.
    const bool model = drafters_[outcome.drafter].runs_model;
    const Learned& learned = learned_[drafters_[outcome.drafter].key];
    const double usual = model ? 2.0 * (outcome.proposed * step_cost(learned, false) +
                                        catch_up_cost(learned, outcome.gap))
                               : 0.1;
    draft_passes += std::min(outcome.ms / plain, usual);
  }
  for (std::size_t i = 0; i < drafters_.size(); ++i) {
    if (drafters_[i].runs_model && !asked[i]) learned_[drafters_[i].key].acceptance.fade();
  }
  tokens_ += round.tokens;
  const double cost = charge(round, plain) + draft_passes;
  account_ = std::min(account_ - (cost - round.tokens), kMostWinnings);
  if (probe) probe_loss_ = std::max(0.0, probe_loss_ + cost * known_rate_ - round.tokens);
}

}  // namespace specdec
