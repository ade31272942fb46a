#include "spec/arbiter.h"

#include <algorithm>
#include <chrono>

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::int32_t levels_of(const Proposal& proposal) {
  std::vector<std::int32_t> level;
  for (const std::int32_t parent : proposal.parents) {
    level.push_back(parent < 0 ? 1 : level[static_cast<std::size_t>(parent)] + 1);
  }
  return level.empty() ? 0 : *std::max_element(level.begin(), level.end());
}

// What became of the nodes of a proposal: of those whose parent stood, which stood themselves. A
// verified node did if it is on the path; another would have if it is the committed token.
// by_level: of all children of a node together, as for a model, whose trees are judged by depth.
std::vector<NodeOutcome> outcomes(const Proposal& proposal,
                                  const std::vector<std::int32_t>& verified,
                                  std::span<const std::int32_t> path,
                                  std::span<const TokenId> committed, bool by_level) {
  std::vector<NodeOutcome> found;
  std::int32_t parent = -1;
  for (std::size_t depth = 0; depth < committed.size(); ++depth) {
    std::int32_t next = -1;
    for (std::int32_t i = parent + 1; i < proposal.size(); ++i) {
      const std::size_t node = static_cast<std::size_t>(i);
      if (proposal.parents[node] != parent) continue;
      const bool stood = verified[node] >= 0 ? std::ranges::find(path, verified[node]) != path.end()
                                             : proposal.tokens[node] == committed[depth];
      if (stood) next = i;
      if (by_level) continue;
      found.push_back({static_cast<std::int32_t>(depth), proposal.confidence(i), stood});
    }
    if (by_level && static_cast<std::int32_t>(depth) < levels_of(proposal)) {
      found.push_back({static_cast<std::int32_t>(depth), -1.0f, next >= 0});
    }
    if (next < 0) break;
    parent = next;
  }
  return found;
}

}  // namespace

DraftArbiter::DraftArbiter(Controller& controller, std::vector<std::shared_ptr<Drafter>> drafters,
                           const std::vector<std::int64_t>& keys, std::size_t prompt_size)
    : controller_(controller),
      drafters_(std::move(drafters)),
      asked_at_size_(drafters_.size(), prompt_size) {
  std::vector<DrafterTraits> traits;
  for (std::size_t i = 0; i < drafters_.size(); ++i) {
    if (!drafters_[i]->adaptive()) continue;
    adaptive_.push_back(i);
    traits.push_back({keys[i], drafters_[i]->max_draft(), drafters_[i]->runs_model()});
  }
  controller_.begin(std::move(traits));
}

// `drafter` counts the adaptive ones.
DraftArbiter::Asked DraftArbiter::ask(std::size_t drafter, const DraftContext& context,
                                      std::int32_t budget) {
  const std::size_t index = adaptive_[drafter];
  const std::size_t size = context.tokens.size();
  const Clock::time_point start = Clock::now();
  Proposal proposal = drafters_[index]->propose(context, budget);
  const double ms = ms_since(start);
  const auto gap = static_cast<std::int32_t>(size - std::min(size, asked_at_size_[index]));
  asked_at_size_[index] = size;
  std::vector<std::int32_t> verified(proposal.tokens.size(), -1);
  return {drafter, std::move(proposal), ms, std::max(gap, 1), std::move(verified)};
}

// The chosen nodes of a proposal, or all of it.
Proposal DraftArbiter::take(Asked& asked, std::span<const std::int32_t> nodes) const {
  const Proposal& all = asked.proposal;
  Proposal part;
  part.source = all.source;
  part.dists = all.dists;
  for (const std::int32_t node : nodes) {
    const std::size_t i = static_cast<std::size_t>(node);
    const std::int32_t parent = all.parents[i];
    asked.verified[i] = part.size();
    part.push_node(all.tokens[i],
                   parent < 0 ? -1 : asked.verified[static_cast<std::size_t>(parent)],
                   all.prob_rows[i], all.confidence(node));
  }
  return part;
}

std::optional<Proposal> DraftArbiter::propose_adaptive(const DraftContext& context,
                                                       std::int32_t room) {
  std::vector<Offer> offers;
  std::vector<std::size_t> offered(adaptive_.size());  // drafter -> index in asked_
  std::vector<std::int32_t> gaps;
  for (std::size_t i = 0; i < adaptive_.size(); ++i) {
    const Drafter& drafter = *drafters_[adaptive_[i]];
    gaps.push_back(static_cast<std::int32_t>(
        context.tokens.size() - std::min(context.tokens.size(), asked_at_size_[adaptive_[i]])));
    if (drafter.runs_model() || !controller_.asks_lookup()) continue;
    offered[i] = asked_.size();
    asked_.push_back(ask(i, context, std::min(room, drafter.max_draft())));
    const Proposal& made = asked_.back().proposal;
    if (!made.empty()) offers.push_back({i, made.parents, made.confidences});
  }
  std::vector<bool> usable(adaptive_.size(), true);
  const auto depth = static_cast<std::int32_t>(context.tokens.size()) - 1;
  for (;;) {
    const Choice choice = controller_.choose(depth, room, offers, usable, gaps);
    if (choice.drafter == Choice::kPlain) return std::nullopt;
    probe_ = choice.probe;
    if (!drafters_[adaptive_[choice.drafter]]->runs_model()) {
      return take(asked_[offered[choice.drafter]], choice.nodes);
    }
    Asked asked = ask(choice.drafter, context, choice.length);
    for (std::int32_t i = 0; i < asked.proposal.size(); ++i) {
      asked.verified[static_cast<std::size_t>(i)] = i;
    }
    usable[choice.drafter] = false;
    asked_.push_back(std::move(asked));
    // All that it drew is verified, whatever it drew.
    if (!asked_.back().proposal.empty()) return asked_.back().proposal;
  }
}

Proposal DraftArbiter::propose(const DraftContext& context, std::int32_t room) {
  asked_.clear();
  probe_ = false;
  if (room <= 0) return {};
  if (!adaptive_.empty()) {
    if (std::optional<Proposal> proposal = propose_adaptive(context, room)) {
      return std::move(*proposal);
    }
  }
  for (const std::shared_ptr<Drafter>& drafter : drafters_) {
    if (drafter->adaptive()) continue;
    Proposal proposal = drafter->propose(context, std::min(room, drafter->max_draft()));
    if (!proposal.empty()) return proposal;
  }
  return {};
}

void DraftArbiter::observe(const Proposal& proposal, std::span<const std::int32_t> path,
                           std::span<const TokenId> tokens, std::size_t before, RoundTimes ms) {
  RoundOutcome round;
  round.width = proposal.size() + 1;
  round.depth = static_cast<std::int32_t>(before) - 1;
  round.pass_ms = ms.pass;
  round.cold = first_round_;
  round.tokens = static_cast<std::int32_t>(tokens.size() - before);
  for (Asked& one : asked_) {
    // By now the tokens that were verified are known.
    for (std::size_t i = 0; i < one.verified.size(); ++i) {
      if (one.verified[i] < 0) continue;
      one.proposal.tokens[i] = proposal.tokens[static_cast<std::size_t>(one.verified[i])];
    }
    const bool model = drafters_[adaptive_[one.drafter]]->runs_model();
    const double wait = one.proposal.drawn != nullptr ? ms.wait : 0.0;
    round.drafters.push_back(
        {one.drafter, one.ms + wait, one.proposal.size(), one.gap, levels_of(one.proposal),
         outcomes(one.proposal, one.verified, path, tokens.subspan(before), model)});
  }
  first_round_ = false;
  controller_.observe(round, probe_);
}

}  // namespace specdec
