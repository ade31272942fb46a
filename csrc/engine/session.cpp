#include "engine/session.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace specdec {
namespace {

std::int32_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto mismatch = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::int32_t>(mismatch.first - a.begin());
}

void check_ids(std::span<const TokenId> tokens, std::int32_t vocab) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      throw InvalidArgument(str("token id ", tokens[i], " at index ", i,
                                " is outside the vocabulary of ", vocab, " tokens"));
    }
  }
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, std::int32_t n_ctx, DType kv_type)
    : state_(std::move(model), n_ctx, kv_type) {}

std::int32_t Session::begin(std::span<const TokenId> prompt, std::int32_t reusable) {
  if (prompt.empty()) {
    throw InvalidArgument(
        "the prompt has no tokens; give at least one (an empty text needs a model with a "
        "beginning-of-sequence token)");
  }
  check_ids(prompt, model().config().vocab);
  const std::int32_t size = static_cast<std::int32_t>(prompt.size());
  if (prompt.size() >= static_cast<std::size_t>(n_ctx())) {
    throw ContextFullError(
        str("the prompt has ", prompt.size(), " tokens, but the context holds ", n_ctx(),
            " and needs room for at least one more; shorten the prompt or raise n_ctx"));
  }
  rollback();
  const std::int32_t common = common_prefix(tokens_, prompt);
  const std::int32_t reused = std::min({common, state_.cache().length(), size - 1, reusable});
  state_.cache().truncate(reused);
  tokens_.assign(prompt.begin(), prompt.end());
  return reused;
}

std::span<const TokenId> Session::unfilled() const {
  const std::size_t filled = static_cast<std::size_t>(state_.cache().length());
  return std::span<const TokenId>(tokens_).subspan(filled, tokens_.size() - 1 - filled);
}

bool Session::prefill(std::int32_t count, const CancelFlag* cancel) {
  const auto rest = unfilled();
  const auto chunk = rest.first(std::min(rest.size(), static_cast<std::size_t>(count)));
  pass_base_ = state_.cache().length();
  pass_rows_.resize(chunk.size());
  std::iota(pass_rows_.begin(), pass_rows_.end(), 0);
  return state_.run(chunk, {}, {0}, cancel, {{}, capture_});
}

bool Session::run_proposal(const Proposal& proposal, const CancelFlag* cancel) {
  SPECDEC_DCHECK(size() == state_.cache().length() + 1, size(), " tokens, ",
                 state_.cache().length(), " cached rows");
  if (proposal.drawn == nullptr) check_ids(proposal.tokens, model().config().vocab);
  std::vector<TokenId> rows = {tokens_.back()};
  std::vector<std::int32_t> parents = {-1};
  for (std::int32_t i = 0; i < proposal.size(); ++i) {
    rows.push_back(proposal.tokens[static_cast<std::size_t>(i)]);
    parents.push_back(proposal.parents[static_cast<std::size_t>(i)] + 1);
  }
  return state_.run(rows, parents, {proposal.size() + 1}, cancel, {{}, capture_}, proposal.drawn);
}

void Session::accept(const Proposal& proposal, std::span<const std::int32_t> path, TokenId next) {
  const std::int32_t base = size() - 1;  // cached rows before the pass
  SPECDEC_DCHECK(state_.cache().length() == base + 1 + proposal.size(), state_.cache().length(),
                 " rows after a pass over ", proposal.size(), " nodes at ", base);
  std::vector<std::int32_t> kept = {0};
  for (const std::int32_t node : path) {
    kept.push_back(node + 1);
    tokens_.push_back(proposal.tokens[static_cast<std::size_t>(node)]);
  }
  state_.keep_path(base, kept);
  pass_base_ = base;
  pass_rows_ = kept;
  tokens_.push_back(next);
  SPECDEC_DCHECK(size() == state_.cache().length() + 1, size(), " tokens, ",
                 state_.cache().length(), " cached rows");
}

HiddenRows Session::hidden_rows() const {
  HiddenRows hidden;
  hidden.first_position = pass_base_;
  const auto left = static_cast<std::size_t>(std::max(0, state_.cache().length() - pass_base_));
  hidden.rows = std::span<const std::int32_t>(pass_rows_).first(std::min(left, pass_rows_.size()));
  hidden.layers = capture_;
  hidden.width = model().config().width;
  hidden.states = capture_.empty() ? nullptr : state_.activations().captured->f32();
  return hidden;
}

void Session::cut(std::int32_t size) {
  SPECDEC_CHECK(size > 0 && size <= this->size(), "cut to ", size, " of ", this->size());
  tokens_.resize(static_cast<std::size_t>(size));
  rollback();
}

void Session::rollback() {
  const std::int32_t limit = std::max(0, size() - 1);
  if (state_.cache().length() > limit) state_.cache().truncate(limit);
}

void Session::logits(std::span<const TokenId> tokens, std::int32_t first, float* host_out) {
  check_ids(tokens, model().config().vocab);
  const std::int32_t size = static_cast<std::int32_t>(tokens.size());
  if (size > n_ctx()) {
    throw ContextFullError(str("the text has ", size, " tokens, but the context holds ", n_ctx(),
                               "; shorten it or raise n_ctx"));
  }
  SPECDEC_CHECK(first >= 0 && first < size, "logits from ", first, " of ", size);
  rollback();
  const std::int32_t reused =
      std::min({common_prefix(tokens_, tokens), state_.cache().length(), first});
  state_.cache().truncate(reused);
  tokens_.assign(tokens.begin(), tokens.end());
  const std::int32_t rows = size - first;
  state_.run(tokens.subspan(static_cast<std::size_t>(reused)), {}, {rows}, nullptr);
  state_.backend().download(state_.workspace(), host_out, state_.logits(0),
                            static_cast<std::size_t>(rows) *
                                static_cast<std::size_t>(model().config().vocab_rows) *
                                sizeof(float));
  rollback();
}

}  // namespace specdec
