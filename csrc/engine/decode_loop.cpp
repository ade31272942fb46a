#include "engine/decode_loop.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "core/error.h"
#include "core/rng.h"

namespace specdec {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

DecodeLoop::DecodeLoop(Session& session, Drafting drafting, std::span<const TokenId> prompt,
                       RequestParams params, const CancelFlag& cancel)
    : session_(session),
      drafters_(drafting.drafters),
      arbiter_(*drafting.controller, drafters_, drafting.keys, prompt.size()),
      params_(std::move(params)),
      cancel_(cancel) {
  stats_.reused_tokens = session_.begin(prompt, prepare_capture(prompt));
  prompt_size_ = session_.size();
  stats_.prompt_tokens = prompt_size_;
  prepare_draw(prompt);
  size_limit_ = session_.n_ctx();
  limit_reason_ = FinishReason::kContext;
  if (params_.max_tokens >= 0 && params_.max_tokens <= size_limit_ - prompt_size_) {
    size_limit_ = prompt_size_ + params_.max_tokens;
    limit_reason_ = FinishReason::kLength;
  }
  if (size_limit_ == prompt_size_) finish_ = limit_reason_;
}

// What the sampling chain needs of the model and of the prompt.
void DecodeLoop::prepare_draw(std::span<const TokenId> prompt) {
  const std::int32_t vocab = session_.model().config().vocab;
  params_.draw.vocab = vocab;
  for (const LogitBias& bias : params_.logit_bias) {
    if (bias.id >= 0 && bias.id < vocab) continue;
    throw InvalidArgument(str("logit_bias is given for token ", bias.id,
                              "; the vocabulary has the ids 0 to ", vocab - 1));
  }
  params_.draw.bias = params_.logit_bias;
  params_.logprobs = std::min(params_.logprobs, vocab);
  if (params_.draw.penalties.active()) counts_ = TokenCounts(prompt);
}

// Tells the session what to keep for the drafters; the rows of the prompt that it may reuse.
std::int32_t DecodeLoop::prepare_capture(std::span<const TokenId> prompt) {
  std::set<std::int32_t> layers;
  std::int32_t reusable = static_cast<std::int32_t>(prompt.size());
  for (const auto& drafter : drafters_) {
    const std::vector<std::int32_t> wanted = drafter->hidden_layers();
    layers.insert(wanted.begin(), wanted.end());
    if (!wanted.empty()) reusable = std::min(reusable, drafter->hidden_rows_held(prompt));
  }
  session_.capture({layers.begin(), layers.end()});
  return reusable;
}

void DecodeLoop::hand_out_hidden() {
  const HiddenRows hidden = session_.hidden_rows();
  if (hidden.layers.empty() || hidden.rows.empty()) return;
  for (const auto& drafter : drafters_) {
    if (!drafter->hidden_layers().empty()) drafter->take_hidden(draft_context(), hidden);
  }
}

StepResult DecodeLoop::finished(FinishReason reason) {
  finish_ = reason;
  StepResult result;
  result.finish = reason;
  return result;
}

StepResult DecodeLoop::step() {
  if (finish_ != FinishReason::kNone) return finished(finish_);
  session_.rollback();
  if (cancel_.is_set()) return finished(FinishReason::kCancelled);
  const bool prefilled = session_.unfilled().empty() && prepared_drafters_ == drafters_.size();
  return prefilled ? round() : prefill_step();
}

StepResult DecodeLoop::prefill_step() {
  const Clock::time_point start = Clock::now();
  if (!session_.unfilled().empty()) {
    const bool done = session_.prefill(params_.prefill_chunk, &cancel_);
    const Clock::time_point draft_start = Clock::now();
    if (done) hand_out_hidden();
    stats_.draft_prompt_ms += ms_since(draft_start);
  } else {
    if (drafters_[prepared_drafters_]->prepare(draft_context())) ++prepared_drafters_;
    stats_.draft_prompt_ms += ms_since(start);
  }
  stats_.prompt_ms += ms_since(start);
  if (cancel_.is_set()) return finished(FinishReason::kCancelled);
  StepResult result;
  result.prefill_progress =
      1.0 - static_cast<double>(session_.unfilled().size()) / static_cast<double>(prompt_size_);
  return result;
}

DraftContext DecodeLoop::draft_context() const {
  const TokenCounts* counts = params_.draw.penalties.active() ? &counts_ : nullptr;
  const bool unknown_tokens = params_.mask == nullptr;
  return DraftContext{session_.tokens(), params_.draw,     &cancel_, counts,
                      unknown_tokens,    &session_.state()};
}

// Drafts past the limit of the text are not asked for.
Proposal DecodeLoop::propose() {
  return arbiter_.propose(draft_context(), size_limit_ - session_.size());
}

Verdict DecodeLoop::verify(const Proposal& proposal) {
  std::vector<std::uint32_t> mask_bits;
  const bool masked = params_.mask != nullptr && params_.mask->masks(session_.tokens(), proposal,
                                                                     params_.draw.vocab, mask_bits);
  VerifyInput input;
  input.logits = session_.state().logits(0);
  input.row_stride = session_.model().config().vocab_rows;
  input.nodes = proposal.size();
  input.tokens = proposal.tokens.data();
  input.drawn = proposal.drawn;
  input.parents = proposal.parents.data();
  input.prob_rows = proposal.prob_rows.data();
  input.draft_rows = static_cast<std::int32_t>(proposal.dists.size());
  input.draft_dists = proposal.dists.data();
  input.mask_bits = masked ? mask_bits.data() : nullptr;
  input.position = static_cast<std::uint64_t>(session_.size());
  input.counts = &counts_;
  input.draw = params_.draw;
  return session_.state().backend().verify(session_.state().workspace(), input);
}

// What the drafter drew and nobody on the host knew so far.
void DecodeLoop::learn_tokens(Proposal& proposal, const Verdict& verdict) {
  proposal.tokens = verdict.tokens;
  for (const auto& drafter : drafters_) drafter->learn_tokens(proposal);
  proposal.drawn = nullptr;
}

StepResult DecodeLoop::round() {
  const Clock::time_point start = Clock::now();
  Proposal proposal = propose();
  const double asked_ms = ms_since(start);
  if (cancel_.is_set()) return finished(FinishReason::kCancelled);

  // Tokens that stay on a device may not even be drafted yet: its own clock tells the two apart.
  Workspace& workspace = session_.state().workspace();
  workspace.mark_time();
  if (!session_.run_proposal(proposal, &cancel_)) return finished(FinishReason::kCancelled);
  Verdict verdict = verify(proposal);
  if (proposal.drawn != nullptr) learn_tokens(proposal, verdict);
  if (params_.synthetic_acceptance >= 0.0) accept_synthetically(proposal, verdict);
  const double verify_ms = workspace.ms_since_mark();
  const double draft_ms = std::max(asked_ms, ms_since(start) - verify_ms);

  const std::int32_t before = session_.size();
  commit(proposal, verdict);
  StepResult result = collect_output(before, proposal, verdict);
  count_round(proposal, result);
  arbiter_.observe(proposal, verdict.path, session_.tokens(), static_cast<std::size_t>(before),
                   {verify_ms, draft_ms - asked_ms});
  stats_.plain_ms_estimate = arbiter_.plain_ms(session_.tokens().size());

  const double round_ms = ms_since(start);
  stats_.draft_ms += draft_ms;
  stats_.verify_ms += verify_ms;
  stats_.decode_ms += round_ms;
  if (stats_.rounds == 1) {
    stats_.first_round_ms = round_ms;
    stats_.first_round_tokens = static_cast<std::int64_t>(result.tokens.size());
  } else if (proposal.empty()) {
    // The first round is left out: it warms the caches of the machine.
    stats_.plain_round_ms.push_back(static_cast<float>(verify_ms));
  }
  return result;
}

// Commits the round, cut at the first stop token or at the limit, in the session and the drafters.
void DecodeLoop::commit(const Proposal& proposal, const Verdict& verdict) {
  const std::int32_t before = session_.size();
  session_.accept(proposal, verdict.path, verdict.next);
  const std::span<const TokenId> tokens = session_.tokens();
  std::int32_t end = std::min(session_.size(), size_limit_);
  if (end == size_limit_) finish_ = limit_reason_;
  for (std::int32_t i = before; i < end; ++i) {
    const TokenId token = tokens[static_cast<std::size_t>(i)];
    if (std::ranges::find(params_.stop_tokens, token) == params_.stop_tokens.end()) continue;
    end = i + 1;
    finish_ = FinishReason::kStop;
    break;
  }
  session_.cut(end);
  if (params_.draw.penalties.active()) {
    for (const TokenId token : session_.tokens().subspan(static_cast<std::size_t>(before))) {
      counts_.add_output(token);
    }
  }
  hand_out_hidden();
  for (const auto& drafter : drafters_) drafter->commit(session_.tokens());
}

// Of the `added` tokens. The first was scored by the pending token's row of logits, each other by
// the row of the accepted node before it.
std::vector<PositionLogprobs> DecodeLoop::logprobs(std::span<const TokenId> added,
                                                   const Verdict& verdict) {
  std::vector<PositionLogprobs> all;
  for (std::size_t i = 0; i < added.size(); ++i) {
    const std::int32_t row = i == 0 ? 0 : verdict.path[i - 1] + 1;
    PositionLogprobs& one = all.emplace_back();
    one.top.resize(static_cast<std::size_t>(params_.logprobs));
    one.logprob = session_.state().backend().log_probabilities(
        session_.state().workspace(), session_.state().logits(row), params_.draw.vocab, added[i],
        params_.logprobs, one.top.data());
  }
  return all;
}

StepResult DecodeLoop::collect_output(std::int32_t before, const Proposal& proposal,
                                      const Verdict& verdict) {
  StepResult result;
  const auto added = session_.tokens().subspan(static_cast<std::size_t>(before));
  result.tokens.assign(added.begin(), added.end());
  if (params_.logprobs >= 0) result.logprobs = logprobs(added, verdict);
  result.drafted = static_cast<std::int32_t>(std::min(added.size(), verdict.path.size()));
  result.source = proposal.source;
  result.prefill_progress = 1.0;
  result.finish = finish_;
  last_added_ = static_cast<std::int32_t>(added.size());
  stats_.generated += last_added_;
  return result;
}

// Accepted is what became part of the text: a stop token or a limit may have cut the path.
void DecodeLoop::count_round(const Proposal& proposal, const StepResult& result) {
  ++stats_.rounds;
  last_accepted_ = result.drafted;
  stats_.accepted += last_accepted_;
  // Picked by rank in place, a node may turn out to be none: its depth is -1, as those below it.
  std::vector<std::int32_t> depth(static_cast<std::size_t>(proposal.size()), -1);
  std::size_t drafted = 0;
  for (std::size_t i = 0; i < depth.size(); ++i) {
    const std::int32_t parent = proposal.parents[i];
    const std::int32_t above = parent < 0 ? 0 : depth[static_cast<std::size_t>(parent)] + 1;
    if (proposal.tokens[i] < 0 || (parent >= 0 && above == 0)) continue;
    depth[i] = above;
    ++stats_.drafted_at[static_cast<std::size_t>(above)];
    ++drafted;
  }
  stats_.drafted += static_cast<std::int64_t>(drafted);
  ++stats_.draft_lengths[drafted];
  for (std::int32_t i = 0; i < last_accepted_; ++i) {
    ++stats_.accepted_at[static_cast<std::size_t>(i)];
  }
}

// Replaces the path by one that a coin decides at each depth, along first children. The text means
// nothing then: it is made of whatever was drafted.
void DecodeLoop::accept_synthetically(const Proposal& proposal, Verdict& verdict) const {
  verdict.path.clear();
  std::int32_t node = -1;
  for (std::int32_t i = 0; i < proposal.size(); ++i) {
    if (proposal.parents[static_cast<std::size_t>(i)] != node) continue;
    const std::uint64_t position =
        static_cast<std::uint64_t>(session_.size()) + verdict.path.size();
    const std::uint64_t bits = random_u64({params_.draw.seed, position, RngPurpose::kAccept, 0});
    if (u64_to_unit(bits) >= params_.synthetic_acceptance) return;
    verdict.path.push_back(i);
    node = i;
  }
}

void DecodeLoop::end() {
  if (ended_) return;
  ended_ = true;
  for (const auto& drafter : drafters_) drafter->end(session_.tokens());
}

void DecodeLoop::cut_output(std::int32_t count, FinishReason reason) {
  const std::int32_t size = prompt_size_ + count;
  if (count < 0 || size > session_.size()) {
    throw InvalidArgument(
        str("cannot keep ", count, " of ", session_.size() - prompt_size_, " generated tokens"));
  }
  const std::int32_t removed = session_.size() - size;
  session_.cut(size);
  for (const auto& drafter : drafters_) drafter->commit(session_.tokens());
  finish_ = reason;
  uncount(removed);
}

// The last `removed` tokens were cut off: of the last round those that it drew itself, then drafts.
void DecodeLoop::uncount(std::int32_t removed) {
  const std::int32_t added = last_added_;
  const std::int32_t kept = std::max(0, std::min(last_accepted_, added - removed));
  for (; last_accepted_ > kept; --last_accepted_) {
    --stats_.accepted;
    --stats_.accepted_at[static_cast<std::size_t>(last_accepted_ - 1)];
  }
  last_added_ = std::max(0, added - removed);
  stats_.generated -= removed;
  if (stats_.rounds == 1) stats_.first_round_tokens = last_added_;
}

}  // namespace specdec
