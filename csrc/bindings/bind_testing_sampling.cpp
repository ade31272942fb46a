// Sampling and verification of a backend for the tests, and `verify_many`, which writes many short
// texts by speculative rounds in C++, so that a statistical test has its 200,000 draws in seconds.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/testing_support.h"

namespace specdec::testing {
namespace {

RngPurpose parse_purpose(const std::string& name) {
  if (name == "target") return RngPurpose::kTargetDraw;
  if (name == "draft") return RngPurpose::kDraftDraw;
  if (name == "accept") return RngPurpose::kAccept;
  throw InvalidArgument(str("purpose '", name, "', expected 'target', 'draft' or 'accept'"));
}

// The sampling chain of keyword arguments named as in SamplingParams, and the text that it follows.
struct ChainArgs {
  DrawParams draw;
  std::vector<LogitBias> bias;
  TokenCounts counts;

  // `kwargs` may hold: temperature, top_k, top_p, min_p, typical_p, repetition_penalty,
  // presence_penalty, frequency_penalty, logit_bias {id: value}, prompt [ids], output [ids].
  ChainArgs(const py::kwargs& kwargs, std::int32_t vocab) {
    draw.vocab = vocab;
    std::vector<TokenId> output;
    for (const auto& [key, value] : kwargs) {
      const auto name = py::cast<std::string>(key);
      if (float* number = number_of(name)) {
        *number = py::cast<float>(value);
      } else if (name == "top_k") {
        draw.filter.top_k = py::cast<std::int32_t>(value);
      } else if (name == "prompt") {
        counts = TokenCounts(py::cast<std::vector<TokenId>>(value));
      } else if (name == "output") {
        output = py::cast<std::vector<TokenId>>(value);
      } else if (name == "logit_bias") {
        for (const auto& [id, added] : py::cast<std::map<TokenId, float>>(value)) {
          bias.push_back({id, added});
        }
      } else {
        throw InvalidArgument(str("unknown sampling parameter '", name, "'"));
      }
    }
    for (const TokenId token : output) counts.add_output(token);
    draw.bias = bias;
    check(draw.filter);
  }
  ChainArgs(const ChainArgs&) = delete;  // draw.bias refers to this object
  ChainArgs& operator=(const ChainArgs&) = delete;

 private:
  // Null if no float has this name.
  float* number_of(const std::string& name) {
    const std::map<std::string, float*> numbers = {
        {"temperature", &draw.filter.temperature},
        {"top_p", &draw.filter.top_p},
        {"min_p", &draw.filter.min_p},
        {"typical_p", &draw.filter.typical_p},
        {"repetition_penalty", &draw.penalties.repetition},
        {"presence_penalty", &draw.penalties.presence},
        {"frequency_penalty", &draw.penalties.frequency}};
    const auto found = numbers.find(name);
    return found == numbers.end() ? nullptr : found->second;
  }

  static void check(const FilterParams& f) {
    const auto is_share = [](float x) { return x >= 0.0f && x <= 1.0f; };
    if (f.temperature >= 0.0f && f.top_k >= 0 && is_share(f.top_p) && is_share(f.min_p) &&
        is_share(f.typical_p)) {
      return;
    }
    throw InvalidArgument(str("temperature ", f.temperature, ", top_k ", f.top_k, ", top_p ",
                              f.top_p, ", min_p ", f.min_p, ", typical_p ", f.typical_p,
                              " are out of range"));
  }
};

// Rows of bools [rows, vocab] as rows of bits.
std::vector<std::uint32_t> pack_mask(const Array<bool>& mask, py::ssize_t rows,
                                     std::int32_t vocab) {
  if (mask.ndim() == 1) {
    check_shape("mask", mask, {vocab});
  } else {
    check_shape("mask", mask, {rows, vocab});
  }
  const std::size_t words = (static_cast<std::size_t>(vocab) + 31) / 32;
  std::vector<std::uint32_t> bits(static_cast<std::size_t>(rows) * words, 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(mask.size()); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(vocab);
    const std::size_t id = i % static_cast<std::size_t>(vocab);
    if (mask.data()[i]) bits[row * words + id / 32] |= 1u << (id % 32);
  }
  return bits;
}

std::int32_t checked_vocab(std::optional<std::int32_t> vocab, py::ssize_t row_size) {
  const std::int32_t value = vocab.value_or(static_cast<std::int32_t>(row_size));
  if (value < 1 || value > row_size) {
    throw InvalidArgument(str("vocab is ", value, ", the logits have ", row_size, " columns"));
  }
  return value;
}

std::uint64_t mass_sum(const float* weight, std::int32_t vocab) {
  std::uint64_t total = 0;
  for (std::int32_t i = 0; i < vocab; ++i) total += weight_to_mass(weight[i]);
  return total;
}

// logits [>= vocab], mask [vocab] bool -> (weights [vocab], total mass), after penalties and bias
py::tuple distribution(const OpBackend& op, const Array<float>& logits,
                       const std::optional<Array<bool>>& mask,
                       std::optional<std::int32_t> vocab_arg, const py::kwargs& chain_args) {
  check_shape("logits", logits, {-1});
  const std::int32_t vocab = checked_vocab(vocab_arg, logits.shape(0));
  const ChainArgs chain(chain_args, vocab);
  std::vector<std::uint32_t> bits;
  if (mask) bits = pack_mask(*mask, 1, vocab);
  const Floats in(op, logits), adjusted(op, static_cast<std::size_t>(vocab));
  const Floats out(op, static_cast<std::size_t>(vocab));
  op.ops().adjust_logits(op.ws(), in.data(), chain.draw, chain.counts, adjusted.data());
  const std::uint64_t total = op.ops().distribution(
      op.ws(), adjusted.data(), vocab, chain.draw.filter, mask ? bits.data() : nullptr, out.data());
  return py::make_tuple(out.numpy({vocab}), total);
}

// logits [>= vocab] -> logits [vocab] with penalties and bias
Array<float> adjust_logits(const OpBackend& op, const Array<float>& logits,
                           std::optional<std::int32_t> vocab_arg, const py::kwargs& chain_args) {
  check_shape("logits", logits, {-1});
  const std::int32_t vocab = checked_vocab(vocab_arg, logits.shape(0));
  const ChainArgs chain(chain_args, vocab);
  const Floats in(op, logits), out(op, static_cast<std::size_t>(vocab));
  op.ops().adjust_logits(op.ws(), in.data(), chain.draw, chain.counts, out.data());
  return out.numpy({vocab});
}

// logits [>= vocab] -> (log-probability of `token`, [(id, log-probability)] of the `top` likeliest)
py::tuple log_probabilities(const OpBackend& op, const Array<float>& logits, TokenId token,
                            std::int32_t top, std::optional<std::int32_t> vocab_arg) {
  check_shape("logits", logits, {-1});
  const std::int32_t vocab = checked_vocab(vocab_arg, logits.shape(0));
  if (token < 0 || token >= vocab || top < 0 || top > vocab) {
    throw InvalidArgument(str("token ", token, " and top ", top, " of a vocabulary of ", vocab));
  }
  const Floats in(op, logits);
  std::vector<TokenLogprob> best(static_cast<std::size_t>(top));
  const float own = op.ops().log_probabilities(op.ws(), in.data(), vocab, token, top, best.data());
  py::list list;
  for (const TokenLogprob& one : best) list.append(py::make_tuple(one.id, one.logprob));
  return py::make_tuple(own, list);
}

// logits [count], ids [count] -> [vocab]
Array<float> scatter_logits(const OpBackend& op, const Array<float>& logits,
                            const Array<std::int32_t>& ids, std::int32_t vocab) {
  check_shape("logits", logits, {-1});
  check_shape("ids", ids, {logits.shape(0)});
  const std::vector<TokenId> list = int_vector("ids", ids);
  for (const TokenId id : list) {
    if (id < 0 || id >= vocab) throw InvalidArgument(str("token ", id, " of ", vocab));
  }
  const auto places = op.ops().allocate(list.size() * sizeof(TokenId));
  op.ops().upload(places->data(), list.data(), list.size() * sizeof(TokenId));
  const Floats in(op, logits), out(op, static_cast<std::size_t>(vocab));
  op.ops().scatter_logits(op.ws(), dim(logits, 0), in.data(),
                          static_cast<const TokenId*>(places->data()), vocab, out.data());
  return out.numpy({vocab});
}

// weights [vocab] -> [(id, probability)]
std::vector<std::pair<TokenId, double>> top_tokens(const OpBackend& op, const Array<float>& weights,
                                                   std::int32_t count) {
  check_shape("weights", weights, {-1});
  const Floats in(op, weights);
  const DistributionView dist{in.data(), mass_sum(weights.data(), dim(weights, 0))};
  std::vector<std::pair<TokenId, double>> out;
  for (const TokenProb& one : op.ops().top_tokens(op.ws(), dist, dim(weights, 0), count)) {
    out.emplace_back(one.id, one.prob);
  }
  return out;
}

// logits [vocab] -> (ids [count], below 0 where there are fewer; the total mass)
py::tuple rank_tokens(const OpBackend& op, const Array<float>& logits, std::int32_t count,
                      const py::kwargs& chain_args) {
  check_shape("logits", logits, {-1});
  const std::int32_t vocab = dim(logits, 0);
  const ChainArgs chain(chain_args, vocab);
  const Floats in(op, logits), weights(op, static_cast<std::size_t>(vocab));
  std::vector<DrawnToken> found(static_cast<std::size_t>(count));
  const auto out = op.ops().allocate(found.size() * sizeof(DrawnToken));
  op.ops().rank_tokens(op.ws(), in.data(), vocab, chain.draw.filter, count, weights.data(),
                       static_cast<DrawnToken*>(out->data()));
  op.ops().download(op.ws(), found.data(), out->data(), found.size() * sizeof(DrawnToken));
  std::vector<TokenId> ids;
  for (const DrawnToken& one : found) ids.push_back(one.token);
  return py::make_tuple(ids, found.front().total);
}

TokenId draw(const OpBackend& op, const Array<float>& weights, std::uint64_t seed,
             std::uint64_t position, const std::string& purpose) {
  check_shape("weights", weights, {-1});
  const Floats in(op, weights);
  const std::uint64_t total = mass_sum(weights.data(), dim(weights, 0));
  return op.ops().draw(op.ws(), {in.data(), total}, dim(weights, 0), seed, position,
                       parse_purpose(purpose));
}

// Moves what the host knows of the tokens into the backend's memory: `input.drawn`.
class TokensInPlace {
 public:
  TokensInPlace(const OpBackend& op, std::vector<TokenId>& tokens,
                std::vector<DistributionView>& dists, VerifyInput& input) {
    std::vector<DrawnToken> drawn;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int32_t row = input.prob_rows[i];
      const std::uint64_t total = row < 0 ? 0 : dists[static_cast<std::size_t>(row)].total;
      drawn.push_back(
          {std::exchange(tokens[i], token_in_place(static_cast<std::int32_t>(i))), total});
    }
    for (DistributionView& dist : dists) dist.total = 0;
    memory_ = op.ops().allocate(drawn.size() * sizeof(DrawnToken));
    op.ops().upload(memory_->data(), drawn.data(), drawn.size() * sizeof(DrawnToken));
    input.drawn = static_cast<const DrawnToken*>(memory_->data());
  }

 private:
  std::unique_ptr<Buffer> memory_;
};

// See Backend::verify; draft_weights [r, vocab], mask [m + 1, vocab] bool. in_place: the tokens lie
// in the backend's memory.
py::tuple verify(const OpBackend& op, const Array<float>& logits,
                 const Array<std::int32_t>& tokens_arg, const Array<std::int32_t>& parents_arg,
                 const Array<std::int32_t>& prob_rows_arg,
                 const std::optional<Array<float>>& draft_weights, const std::string& rule,
                 std::uint64_t seed, std::uint64_t position, std::optional<std::int32_t> vocab_arg,
                 const std::optional<Array<bool>>& mask, bool in_place,
                 const py::kwargs& chain_args) {
  const auto known = int_vector("tokens", tokens_arg);
  auto tokens = known;
  const auto parents = int_vector("parents", parents_arg);
  const auto prob_rows = int_vector("prob_rows", prob_rows_arg);
  const auto m = static_cast<py::ssize_t>(tokens.size());
  check_shape("parents", parents_arg, {m});
  check_shape("prob_rows", prob_rows_arg, {m});
  check_shape("logits", logits, {m + 1, -1});
  check_parents(parents);
  const std::int32_t vocab = checked_vocab(vocab_arg, logits.shape(1));
  const ChainArgs chain(chain_args, vocab);
  VerifyInput input;
  input.draw = chain.draw;
  input.draw.rule = parse_rule(rule);
  input.draw.seed = seed;
  input.counts = &chain.counts;

  std::vector<DistributionView> dists;
  std::optional<Floats> drafts;
  if (draft_weights) {
    check_shape("draft_weights", *draft_weights, {-1, vocab});
    drafts.emplace(op, *draft_weights);
    for (py::ssize_t row = 0; row < draft_weights->shape(0); ++row) {
      const py::ssize_t at = row * vocab;
      dists.push_back({drafts->data() + at, mass_sum(draft_weights->data() + at, vocab)});
    }
  }
  std::vector<std::uint32_t> bits;
  if (mask) bits = pack_mask(*mask, m + 1, vocab);
  const Floats rows(op, logits);
  input.logits = rows.data();
  input.row_stride = logits.shape(1);
  input.nodes = static_cast<std::int32_t>(m);
  input.tokens = tokens.data();
  input.parents = parents.data();
  input.prob_rows = prob_rows.data();
  input.draft_rows = static_cast<std::int32_t>(dists.size());
  input.draft_dists = dists.data();
  input.mask_bits = mask ? bits.data() : nullptr;
  input.position = position;
  std::optional<TokensInPlace> placed;
  if (in_place) placed.emplace(op, tokens, dists, input);
  const Verdict verdict = op.ops().verify(op.ws(), input);
  SPECDEC_CHECK(verdict.tokens == known, "the verdict has other tokens");
  return py::make_tuple(verdict.path, verdict.next);
}

// A language model and a drafter that look at the last token only, and the shape of the proposal.
struct ToyTask {
  std::int32_t vocab = 0;
  const float* target_logits = nullptr;  // [V, V]: row t scores the token after t
  const float* draft_weights = nullptr;  // [V, V]: what the drafter draws from after t
  std::vector<std::int32_t> parents;     // [m]
  std::vector<bool> sampled;             // [m]; false: the likeliest token, deterministic
  DrawParams draw;
};

// Writes texts with the toy models by speculative rounds: what the engine does, without a network.
class ToyWriter {
 public:
  ToyWriter(const OpBackend& op, const ToyTask& task)
      : op_(op),
        task_(task),
        vocab_(static_cast<std::size_t>(task.vocab)),
        nodes_(task.parents.size()),
        logits_(op, (nodes_ + 1) * vocab_),
        weights_(op, nodes_ * vocab_),
        host_weights_(nodes_ * vocab_),
        tokens_(nodes_),
        depths_(nodes_),
        prob_rows_(nodes_),
        dists_(nodes_) {
    for (std::size_t i = 0; i < nodes_; ++i) {
      const std::int32_t parent = task.parents[i];
      depths_[i] = parent < 0 ? 0 : depths_[static_cast<std::size_t>(parent)] + 1;
    }
  }

  // `length` tokens after `start`; the first has index `position` in its text.
  std::vector<TokenId> write(TokenId start, std::size_t length, std::uint64_t position) {
    std::vector<TokenId> text;
    TokenId pending = start;
    while (text.size() < length) {
      const Verdict verdict = play_round(pending, position + text.size());
      for (const std::int32_t node : verdict.path) {
        text.push_back(tokens_[static_cast<std::size_t>(node)]);
      }
      text.push_back(verdict.next);
      pending = verdict.next;
      ++rounds;
      accepted += static_cast<std::int64_t>(verdict.path.size());
    }
    text.resize(length);
    return text;
  }

  std::int64_t rounds = 0, accepted = 0;

 private:
  Verdict play_round(TokenId pending, std::uint64_t position) {
    score(0, pending);
    for (std::size_t i = 0; i < nodes_; ++i) {
      propose(i, pending, position);
      score(i + 1, tokens_[i]);
    }
    VerifyInput input;
    input.logits = logits_.data();
    input.row_stride = task_.vocab;
    input.nodes = static_cast<std::int32_t>(nodes_);
    input.tokens = tokens_.data();
    input.parents = task_.parents.data();
    input.prob_rows = prob_rows_.data();
    input.draft_rows = static_cast<std::int32_t>(dists_.size());
    input.draft_dists = dists_.data();
    input.position = position;
    input.draw = task_.draw;
    return op_.ops().verify(op_.ws(), input);
  }

  // The target's logits after `token` become row `row`.
  void score(std::size_t row, TokenId token) {
    op_.ops().upload(logits_.data() + row * vocab_,
                     task_.target_logits + static_cast<std::size_t>(token) * vocab_,
                     vocab_ * sizeof(float));
  }

  // Chooses node i: its draft distribution is the drafter's after its parent, without the tokens of
  // its elder siblings (drawing without replacement).
  void propose(std::size_t i, TokenId pending, std::uint64_t position) {
    const std::int32_t parent = task_.parents[i];
    const TokenId context = parent < 0 ? pending : tokens_[static_cast<std::size_t>(parent)];
    float* weight = host_weights_.data() + i * vocab_;
    const float* row = task_.draft_weights + static_cast<std::size_t>(context) * vocab_;
    std::copy(row, row + vocab_, weight);
    for (std::size_t j = 0; j < i; ++j) {
      if (task_.parents[j] == parent) weight[static_cast<std::size_t>(tokens_[j])] = 0.0f;
    }
    float* device_weight = weights_.data() + i * vocab_;
    op_.ops().upload(device_weight, weight, vocab_ * sizeof(float));
    dists_[i] = {device_weight, mass_sum(weight, task_.vocab)};
    prob_rows_[i] = task_.sampled[i] && dists_[i].total > 0 ? static_cast<std::int32_t>(i) : -1;
    if (prob_rows_[i] < 0) {
      tokens_[i] = static_cast<TokenId>(std::max_element(weight, weight + vocab_) - weight);
    } else {
      // A coupled drafter shares the target's noise; an independent one has its own.
      const bool coupled = task_.draw.rule == AcceptRule::kCoupled;
      tokens_[i] =
          op_.ops().draw(op_.ws(), dists_[i], task_.vocab, task_.draw.seed, position + depths_[i],
                         coupled ? RngPurpose::kTargetDraw : RngPurpose::kDraftDraw);
    }
  }

  const OpBackend& op_;
  const ToyTask& task_;
  std::size_t vocab_, nodes_;
  Floats logits_;                        // [m + 1, V]
  Floats weights_;                       // [m, V]
  std::vector<float> host_weights_;      // [m, V]
  std::vector<TokenId> tokens_;          // [m]
  std::vector<std::uint64_t> depths_;    // [m]
  std::vector<std::int32_t> prob_rows_;  // [m]
  std::vector<DistributionView> dists_;  // [m]
};

// Counts of the texts of `length` tokens, first token most significant: (counts [V^length], rounds,
// accepted). Trial i starts at position first_position + i * 2^20.
py::tuple verify_many(const OpBackend& op, const Array<float>& target_logits,
                      const Array<float>& draft_weights, const Array<std::int32_t>& parents,
                      const std::vector<bool>& sampled, TokenId start, std::int32_t length,
                      std::int64_t trials, const std::string& rule, std::uint64_t seed,
                      std::uint64_t first_position, const py::kwargs& chain_args) {
  check_shape("target_logits", target_logits, {-1, -1});
  const py::ssize_t vocab = target_logits.shape(0);
  check_shape("target_logits", target_logits, {vocab, vocab});
  check_shape("draft_weights", draft_weights, {vocab, vocab});
  check_shape("parents", parents, {static_cast<py::ssize_t>(sampled.size())});
  if (start < 0 || start >= vocab || length < 1 || length > 4 || vocab > 64) {
    throw InvalidArgument(
        str("start ", start, ", length ", length, " (1 to 4), vocabulary ", vocab, " (up to 64)"));
  }
  const ChainArgs chain(chain_args, static_cast<std::int32_t>(vocab));
  ToyTask task{static_cast<std::int32_t>(vocab),
               target_logits.data(),
               draft_weights.data(),
               int_vector("parents", parents),
               sampled,
               chain.draw};
  check_parents(task.parents);
  task.draw.rule = parse_rule(rule);
  task.draw.seed = seed;
  py::ssize_t outcomes = 1;
  for (std::int32_t i = 0; i < length; ++i) outcomes *= vocab;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(outcomes), 0);
  ToyWriter writer(op, task);
  {
    const py::gil_scoped_release release;
    for (std::int64_t trial = 0; trial < trials; ++trial) {
      const std::uint64_t position = first_position + (static_cast<std::uint64_t>(trial) << 20);
      std::size_t outcome = 0;
      for (const TokenId token : writer.write(start, static_cast<std::size_t>(length), position)) {
        outcome = outcome * static_cast<std::size_t>(vocab) + static_cast<std::size_t>(token);
      }
      ++counts[outcome];
    }
  }
  return py::make_tuple(py::array_t<std::int64_t>(outcomes, counts.data()), writer.rounds,
                        writer.accepted);
}

}  // namespace

void bind_testing_sampling(py::module_&, py::class_<OpBackend>& cls) {
  cls.def("distribution", distribution, py::arg("logits"), py::kw_only(),
          py::arg("mask") = py::none(), py::arg("vocab") = py::none());
  cls.def("adjust_logits", adjust_logits, py::arg("logits"), py::kw_only(),
          py::arg("vocab") = py::none());
  cls.def("log_probabilities", log_probabilities, py::arg("logits"), py::arg("token"),
          py::arg("top"), py::kw_only(), py::arg("vocab") = py::none());
  cls.def("scatter_logits", scatter_logits, py::arg("logits"), py::arg("ids"), py::arg("vocab"));
  cls.def("rank_tokens", rank_tokens, py::arg("logits"), py::arg("count"));
  cls.def("top_tokens", top_tokens, py::arg("weights"), py::arg("count"));
  cls.def("draw", draw, py::arg("weights"), py::arg("seed"), py::arg("position"),
          py::arg("purpose") = "target");
  cls.def("verify", verify, py::arg("logits"), py::arg("tokens"), py::arg("parents"),
          py::arg("prob_rows"), py::arg("draft_weights") = py::none(), py::kw_only(),
          py::arg("rule") = "coupled", py::arg("seed") = 0, py::arg("position") = 0,
          py::arg("vocab") = py::none(), py::arg("mask") = py::none(), py::arg("in_place") = false);
  cls.def("verify_many", verify_many, py::arg("target_logits"), py::arg("draft_weights"),
          py::arg("parents"), py::arg("sampled"), py::kw_only(), py::arg("start") = 0,
          py::arg("length") = 1, py::arg("trials") = 1, py::arg("rule") = "rejection",
          py::arg("seed") = 0, py::arg("position") = 0);
}

}  // namespace specdec::testing
