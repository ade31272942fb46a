#include "spec/drafters/suffix.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {
namespace {

// Compared at each round, as an alarm: the whole text is compared when a request begins, and
// within one it only grows.
constexpr std::size_t kComparedTail = 16;

void check_options(const SuffixOptions& options) {
  if (options.max_draft < 1 || options.max_draft > kMaxDraft) {
    throw InvalidArgument(str("max_draft is ", options.max_draft, "; it must be 1 to ", kMaxDraft));
  }
  if (options.min_match < 1 || options.max_match < options.min_match || options.max_match > 256) {
    throw InvalidArgument(str("min_match ", options.min_match, " and max_match ", options.max_match,
                              " must satisfy 1 <= min_match <= max_match <= 256"));
  }
  const auto most = static_cast<std::int32_t>(SuffixAutomaton::kRanked);
  if (options.branches < 1 || options.branches > most) {
    throw InvalidArgument(str("branches is ", options.branches, "; it must be 1 to ", most));
  }
  if (!(options.min_score > 0.0 && options.min_score <= 1.0)) {
    throw InvalidArgument(
        str("min_score is ", options.min_score, "; it must be above 0 and at most 1"));
  }
}

// How likely a continuation is that followed `count` of `total` times after a match of `length`
// tokens: the empirical frequency, lowered by an escape that shrinks with the length, since a long
// match seen once says more than a short one.
double frequency(std::int32_t count, std::int32_t total, std::int32_t length) {
  return static_cast<double>(count) / (static_cast<double>(total) + 1.0 / length);
}

}  // namespace

SuffixDrafter::SuffixDrafter(SuffixOptions options, std::unique_ptr<TokenCorpus> corpus)
    : options_((check_options(options), options)),
      own_(options.max_match),
      corpus_(std::move(corpus)),
      earlier_(options.max_match) {
  index_corpus();
}

void SuffixDrafter::index_corpus() {
  earlier_.clear();
  separator_ = -1;
  if (!corpus_) return;
  for (const auto& text : corpus_->texts()) index_text(text);
}

// A separator of its own after each text, so that no match runs from one into the next.
void SuffixDrafter::index_text(std::span<const TokenId> text) {
  for (const TokenId token : text) earlier_.append(token);
  earlier_.append(separator_--);
}

void SuffixDrafter::reset() {
  own_.clear();
  followed_.clear();
  earlier_match_ = {};
}

// Brings the automaton up to the committed tokens. Text that was taken back starts it over.
void SuffixDrafter::follow(std::span<const TokenId> tokens, bool check_all) {
  const std::size_t known = followed_.size();
  const std::size_t compared = check_all ? known : std::min(known, kComparedTail);
  if (known > tokens.size() ||
      !std::equal(followed_.end() - static_cast<std::ptrdiff_t>(compared), followed_.end(),
                  tokens.begin() + static_cast<std::ptrdiff_t>(known - compared))) {
    reset();
  }
  for (const TokenId token : tokens.subspan(followed_.size())) {
    own_.append(token);
    followed_.push_back(token);
    if (corpus_) earlier_match_ = earlier_.advance(earlier_match_, token);
  }
  SPECDEC_DCHECK(std::equal(followed_.begin(), followed_.end(), tokens.begin(), tokens.end()),
                 "the text of a request changed while it ran");
}

bool SuffixDrafter::prepare(const DraftContext& context) {
  follow(context.tokens, true);
  return true;
}

// The likeliest continuations of a match, of ever shorter ones while there are none: at its end the
// text has no continuation yet, and repeats what it did there before.
void SuffixDrafter::add_candidates(const SuffixAutomaton& automaton, SuffixAutomaton::Match match,
                                   std::int32_t parent, double score,
                                   std::vector<Candidate>& out) const {
  while (match.length >= options_.min_match && automaton.continuations(match.state) == 0) {
    match = automaton.shorter(match);
  }
  if (match.length < options_.min_match) return;
  std::array<SuffixAutomaton::Continuation, SuffixAutomaton::kRanked> ranked;
  const std::size_t count =
      std::min(automaton.ranked(match.state, ranked), static_cast<std::size_t>(options_.branches));
  for (std::size_t i = 0; i < count; ++i) {
    if (ranked[i].token < 0) continue;  // a text of the corpus ended there
    const double likely =
        frequency(ranked[i].count, automaton.continuations(match.state), match.length);
    if (score * likely < options_.min_score) break;
    out.push_back({parent, ranked[i].token, static_cast<float>(likely), score * likely,
                   automaton.advance(match, ranked[i].token)});
  }
}

Proposal SuffixDrafter::propose(const DraftContext& context, std::int32_t budget) {
  Proposal proposal;
  proposal.source = name_;
  follow(context.tokens, false);
  const SuffixAutomaton::Match own = own_.repeated_suffix();
  const bool from_corpus = earlier_match_.length > own.length;
  const SuffixAutomaton& automaton = from_corpus ? earlier_ : own_;
  std::vector<Candidate> candidates;
  add_candidates(automaton, from_corpus ? earlier_match_ : own, -1, 1.0, candidates);
  const std::int32_t limit = std::min(budget, options_.max_draft);
  while (proposal.size() < limit && !candidates.empty()) {
    // The likeliest first; of equals the one that came first.
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    const Candidate chosen = *best;
    candidates.erase(best);
    const std::int32_t index = proposal.size();
    proposal.push_node(chosen.token, chosen.parent, -1, chosen.confidence);
    add_candidates(automaton, chosen.match, index, chosen.score, candidates);
  }
  return proposal;
}

// Stores what is new since the text that was stored last, with the context it stands in.
void SuffixDrafter::end(std::span<const TokenId> tokens) {
  if (!corpus_) return;
  const auto mismatch = std::mismatch(stored_.begin(), stored_.end(), tokens.begin(), tokens.end());
  const std::size_t common = static_cast<std::size_t>(mismatch.second - tokens.begin());
  if (common == tokens.size()) return;
  const std::size_t overlap = std::min(common, static_cast<std::size_t>(options_.max_match));
  stored_.assign(tokens.begin(), tokens.end());
  const bool dropped = corpus_->append(tokens.subspan(common - overlap));
  if (dropped) {
    index_corpus();
  } else {
    index_text(corpus_->texts().back());
  }
  earlier_match_ = {};
  for (const TokenId token : followed_) earlier_match_ = earlier_.advance(earlier_match_, token);
}

}  // namespace specdec
