#include "backend/verify.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "backend/accept_rule.h"
#include "core/error.h"
#include "core/rng.h"

namespace specdec {
namespace {

// What is left of the target distribution at one node after the siblings rejected so far. Until
// the first rejection the shares are the target's masses and nothing is copied.
class RemainingTarget {
 public:
  // target.weight [vocab] and shares (scratch memory) must outlive this object.
  RemainingTarget(const DistributionView& target, std::int32_t vocab,
                  std::vector<std::uint64_t>& shares)
      : target_(target), vocab_(vocab), left_(target.total), shares_(shares) {}

  // Does a token stand that was drafted with probability draft_prob?
  bool stands(TokenId token, double draft_prob, double coin) const {
    return accepts(coin, share(token), left_, draft_prob);
  }

  // A rejected deterministic token: max(0, share - one-hot) only clears its own share.
  void remove_token(TokenId token) {
    if (!in_vocab(token)) return;
    copy_shares();
    left_ -= shares_[static_cast<std::size_t>(token)];
    shares_[static_cast<std::size_t>(token)] = 0;
  }

  // A rejected token drawn from `draft`, weight [vocab]: both sides as 62-bit probabilities, the
  // left one renormalised (arXiv 2305.09781), so equal distributions leave exactly nothing.
  void subtract(const DistributionView& draft) {
    if (left_ == 0) return;
    copy_shares();
    const std::uint64_t left_before = left_;
    left_ = 0;
    for (TokenId id = 0; id < vocab_; ++id) {
      std::uint64_t& share = shares_[static_cast<std::size_t>(id)];
      share = residual_mass(fixed_probability(share, left_before),
                            fixed_probability(weight_to_mass(draft.weight[id]), draft.total));
      left_ += share;
    }
  }

  // The recovered token, by running mass over ascending ids. Nothing is left only where rounding
  // rejected what the exact rule accepts (draft equal to target): then from the target itself.
  TokenId draw(std::uint64_t bits) const {
    const bool exhausted = left_ == 0;
    const std::uint64_t threshold = draw_threshold(bits, exhausted ? target_.total : left_);
    std::uint64_t running = 0;
    for (TokenId id = 0; id < vocab_; ++id) {
      running += exhausted ? weight_to_mass(target_.weight[id]) : share(id);
      if (running > threshold) return id;
    }
    throw InternalError("the masses of a distribution do not add up to its total");
  }

 private:
  bool in_vocab(TokenId token) const { return token >= 0 && token < vocab_; }

  // 0 for a token outside the vocabulary, so it never stands.
  std::uint64_t share(TokenId token) const {
    if (!in_vocab(token)) return 0;
    if (!copied_) return weight_to_mass(target_.weight[token]);
    return shares_[static_cast<std::size_t>(token)];
  }

  void copy_shares() {
    if (copied_) return;
    copied_ = true;
    shares_.resize(static_cast<std::size_t>(vocab_));
    std::transform(target_.weight, target_.weight + vocab_, shares_.begin(), weight_to_mass);
  }

  DistributionView target_;
  std::int32_t vocab_;
  std::uint64_t left_;                  // sum of the shares
  bool copied_ = false;                 // the shares are in shares_; else still the target's masses
  std::vector<std::uint64_t>& shares_;  // [vocab]
};

// One walk. `node` -1 is the pending token; the token after `node` is scored by logits row node
// + 1. It only ever goes on below nodes that stand, so the counts grow along the path and never
// have to be taken back.
class Walk {
 public:
  Walk(const Backend& backend, Workspace& workspace, VerifyScratch& scratch,
       const VerifyInput& input)
      : backend_(backend), workspace_(workspace), scratch_(scratch), input_(input) {
    check_input();
    if (counting()) scratch_.counts = *input_.counts;
  }

  Verdict run() {
    Verdict verdict;
    for (std::int32_t node = -1;;) {
      const Step step = take_step(node, input_.position + verdict.path.size());
      if (step.child < 0) {
        verdict.next = step.next;
        return verdict;
      }
      verdict.path.push_back(step.child);
      if (counting()) scratch_.counts.add_output(input_.tokens[step.child]);
      node = step.child;
    }
  }

 private:
  // The child that stands, or -1 and the token that ends the walk.
  struct Step {
    std::int32_t child = -1;
    TokenId next = 0;
  };

  // `position`: index in the text of the token that this step decides.
  Step take_step(std::int32_t node, std::uint64_t position) {
    if (input_.draw.filter.greedy()) {
      return follow(node, argmax_token(adjusted_logits(node), vocab(), mask(node)));
    }
    const DistributionView target = target_distribution(node);
    if (input_.draw.rule == AcceptRule::kRejection) return step_rejection(node, target, position);
    return follow(node, draw_target(target, position));
  }

  // Greedy and coupled: the target has chosen `token`; a child that guessed it stands.
  Step follow(std::int32_t node, TokenId token) const {
    for (std::int32_t i = node + 1; i < input_.nodes; ++i) {
      if (input_.parents[i] == node && input_.tokens[i] == token) return {i, token};
    }
    return {-1, token};
  }

  // Children in index order, each with its own coin, against what its elder siblings left.
  Step step_rejection(std::int32_t node, const DistributionView& target, std::uint64_t position) {
    RemainingTarget remaining(target, vocab(), scratch_.shares);
    std::uint32_t sibling = 0;
    for (std::int32_t i = node + 1; i < input_.nodes; ++i) {
      if (input_.parents[i] != node || input_.tokens[i] < 0) continue;
      const double coin =
          u64_to_unit(random_u64({input_.draw.seed, position, RngPurpose::kAccept, sibling++}));
      const TokenId token = input_.tokens[i];
      const DistributionView* draft = draft_distribution(i);
      const double draft_prob = draft == nullptr ? 1.0 : draft_probability(*draft, token);
      if (remaining.stands(token, draft_prob, coin)) return {i, token};
      if (draft == nullptr) {
        remaining.remove_token(token);
      } else {
        remaining.subtract(*draft);
      }
    }
    if (sibling == 0) return {-1, draw_target(target, position)};  // a leaf: the bonus token
    const std::uint64_t bits = random_u64({input_.draw.seed, position, RngPurpose::kTargetDraw, 0});
    return {-1, remaining.draw(bits)};
  }

  std::int32_t vocab() const { return input_.draw.vocab; }

  bool counting() const { return input_.draw.penalties.active(); }

  // The row that scores the token after `node`, the walk being there: its path is what was counted.
  const float* adjusted_logits(std::int32_t node) {
    const float* row = input_.logits + (node + 1) * input_.row_stride;
    if (!input_.draw.adjusts_logits()) return row;
    scratch_.adjusted.resize(static_cast<std::size_t>(vocab()));
    backend_.adjust_logits(workspace_, row, input_.draw, scratch_.counts, scratch_.adjusted.data());
    return scratch_.adjusted.data();
  }

  const std::uint32_t* mask(std::int32_t node) const {
    if (input_.mask_bits == nullptr) return nullptr;
    return input_.mask_bits + (node + 1) * ((static_cast<std::ptrdiff_t>(vocab()) + 31) / 32);
  }

  DistributionView target_distribution(std::int32_t node) {
    const float* row = adjusted_logits(node);
    scratch_.weight.resize(static_cast<std::size_t>(vocab()));
    float* weight = scratch_.weight.data();
    const std::uint64_t total =
        backend_.distribution(workspace_, row, vocab(), input_.draw.filter, mask(node), weight);
    return {weight, total};
  }

  TokenId draw_target(const DistributionView& target, std::uint64_t position) {
    return backend_.draw(workspace_, target, vocab(), input_.draw.seed, position,
                         RngPurpose::kTargetDraw);
  }

  // Null for a deterministic node. A row without mass cannot have been drawn from: deterministic.
  const DistributionView* draft_distribution(std::int32_t node) const {
    const std::int32_t row = input_.prob_rows == nullptr ? -1 : input_.prob_rows[node];
    if (row < 0 || input_.draft_dists[row].total == 0) return nullptr;
    return &input_.draft_dists[row];
  }

  double draft_probability(const DistributionView& draft, TokenId token) const {
    return token >= 0 && token < vocab() ? probability(draft, token) : 1.0;
  }

  // What would read outside of the arrays. Tokens need no check: strange ones never stand.
  void check_input() const {
    SPECDEC_CHECK(vocab() > 0 && vocab() <= input_.row_stride, "vocabulary of ", vocab(),
                  " in logits rows of ", input_.row_stride);
    SPECDEC_CHECK(!counting() || input_.counts != nullptr, "penalties without counts");
    for (std::int32_t i = 0; i < input_.nodes; ++i) {
      SPECDEC_CHECK(input_.parents[i] >= -1 && input_.parents[i] < i, "node ", i, " has parent ",
                    input_.parents[i]);
      const std::int32_t row = input_.prob_rows == nullptr ? -1 : input_.prob_rows[i];
      SPECDEC_CHECK(row >= -1 && row < input_.draft_rows, "node ", i, " has draft distribution ",
                    row, " of ", input_.draft_rows);
    }
  }

  const Backend& backend_;
  Workspace& workspace_;
  VerifyScratch& scratch_;
  const VerifyInput& input_;
};

}  // namespace

TokenId argmax_token(const float* logits, std::int32_t vocab, const std::uint32_t* mask_bits) {
  TokenId best = -1;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (TokenId id = 0; id < vocab; ++id) {
    if (logits[id] > best_logit && is_allowed(mask_bits, id)) {
      best_logit = logits[id];
      best = id;
    }
  }
  if (best >= 0) return best;
  for (TokenId id = 0; id < vocab; ++id) {
    if (is_allowed(mask_bits, id)) return id;
  }
  return 0;
}

void adjust_logits_on_host(const float* logits, const DrawParams& draw, const TokenCounts& counts,
                           float* out) {
  const auto checked = [&](TokenId id) {
    SPECDEC_CHECK(id >= 0 && id < draw.vocab, "token ", id, " of a vocabulary of ", draw.vocab);
    return id;
  };
  std::copy_n(logits, draw.vocab, out);
  if (draw.penalties.active()) {
    for (const TokenCount& entry : counts.entries()) {
      float& logit = out[checked(entry.id)];
      logit = penalised_logit(logit, draw.penalties, entry.output);
    }
  }
  for (const LogitBias& bias : draw.bias) out[checked(bias.id)] += bias.value;
}

Verdict verify_on_host(const Backend& backend, Workspace& workspace, VerifyScratch& scratch,
                       const VerifyInput& input) {
  const auto nodes = static_cast<std::size_t>(input.nodes);
  std::vector<TokenId> tokens(nodes);
  std::vector<DistributionView> dists(input.draft_dists, input.draft_dists + input.draft_rows);
  for (std::size_t i = 0; i < nodes; ++i) {
    const TokenId given = input.tokens[i];
    tokens[i] = known_token(given, input.drawn);
    const std::int32_t row = input.prob_rows == nullptr ? -1 : input.prob_rows[i];
    if (given >= 0 || input.drawn == nullptr || row < 0 || row >= input.draft_rows) continue;
    dists[static_cast<std::size_t>(row)].total = input.drawn[place_of(given)].total;
  }
  VerifyInput known = input;
  known.tokens = tokens.data();
  known.draft_dists = dists.data();
  Verdict verdict = Walk(backend, workspace, scratch, known).run();
  verdict.tokens = std::move(tokens);
  return verdict;
}

}  // namespace specdec
