#include "spec/suffix_automaton.h"

#include <algorithm>

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::size_t kFirstTable = 64;       // slots, a power of two
constexpr std::size_t kMaxTokens = 1u << 28;  // states and edges are counted in 32 bits

}  // namespace

SuffixAutomaton::SuffixAutomaton(std::int32_t max_match) : max_match_(max_match) {
  SPECDEC_CHECK(max_match >= 1, "max_match is ", max_match);
  clear();
}

void SuffixAutomaton::clear() {
  size_ = 0;
  whole_ = kRoot;
  context_ = {};
  nodes_.assign(1, Node{0, kNone});
  edges_.clear();
  table_.assign(kFirstTable, -1);
}

std::size_t SuffixAutomaton::bytes() const {
  return nodes_.capacity() * sizeof(Node) + edges_.capacity() * sizeof(Edge) +
         table_.capacity() * sizeof(std::int32_t);
}

// The slot of the edge, or the free one where it would go.
std::size_t SuffixAutomaton::slot(State state, TokenId token) const {
  const std::size_t mask = table_.size() - 1;
  std::uint64_t hash = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(state)) << 32) |
                       static_cast<std::uint32_t>(token);
  hash *= 0x9e3779b97f4a7c15ull;
  hash ^= hash >> 32;
  for (std::size_t at = static_cast<std::size_t>(hash) & mask;; at = (at + 1) & mask) {
    const std::int32_t index = table_[at];
    if (index < 0 || (edge(index).from == state && edge(index).token == token)) return at;
  }
}

void SuffixAutomaton::grow_table() {
  table_.assign(table_.size() * 2, -1);
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    table_[slot(edges_[i].from, edges_[i].token)] = static_cast<std::int32_t>(i);
  }
}

void SuffixAutomaton::add_edge(State from, TokenId token, State to) {
  if ((edges_.size() + 1) * 2 > table_.size()) grow_table();
  const std::int32_t index = static_cast<std::int32_t>(edges_.size());
  edges_.push_back({from, token, to, node(from).first_edge});
  node(from).first_edge = index;
  table_[slot(from, token)] = index;
}

SuffixAutomaton::State SuffixAutomaton::add_state(std::int32_t length) {
  nodes_.push_back(Node{length, kRoot});
  return static_cast<State>(nodes_.size() - 1);
}

// A state for the shorter substrings of `original`, those of at most `length` tokens: they have
// ended at the same places so far, with the same continuations.
SuffixAutomaton::State SuffixAutomaton::clone_state(State original, std::int32_t length) {
  const State clone = add_state(length);
  node(clone).link = node(original).link;
  node(clone).count = node(original).count;
  node(clone).continuations = node(original).continuations;
  for (std::int32_t i = node(original).first_edge; i >= 0; i = edge(i).next) {
    const Edge copied = edge(i);
    add_edge(clone, copied.token, copied.to);
    const auto& ranks = node(original).ranked;
    const auto place = std::find(ranks.begin(), ranks.end(), i) - ranks.begin();
    if (place < static_cast<std::ptrdiff_t>(kRanked)) {
      node(clone).ranked[static_cast<std::size_t>(place)] =
          static_cast<std::int32_t>(edges_.size() - 1);
    }
  }
  return clone;
}

// The online construction: gives every suffix that could not be followed by `token` that edge.
void SuffixAutomaton::extend(TokenId token) {
  const State added = add_state(node(whole_).length + 1);
  State state = whole_;
  std::int32_t found = -1;
  for (; state != kNone && (found = find_edge(state, token)) < 0; state = node(state).link) {
    add_edge(state, token, added);
  }
  whole_ = added;
  if (state == kNone) return;  // its link is the root
  const State next = edge(found).to;
  if (node(next).length == node(state).length + 1) {
    node(added).link = next;
    return;
  }
  const State clone = clone_state(next, node(state).length + 1);
  for (; state != kNone; state = node(state).link) {
    found = find_edge(state, token);
    if (found < 0 || edge(found).to != next) break;
    edge(found).to = clone;
  }
  node(next).link = clone;
  node(added).link = clone;
}

SuffixAutomaton::Match SuffixAutomaton::capped(Match match, std::int32_t limit) const {
  match.length = std::min(match.length, limit);
  // Also finds the state again where a clone has taken the shorter substrings.
  while (match.state != kRoot && node(node(match.state).link).length >= match.length) {
    match.state = node(match.state).link;
  }
  return match;
}

// One more occurrence of each suffix of at most max_match + 1 tokens, as the continuation of the
// suffixes before the token.
void SuffixAutomaton::count_token(TokenId token) {
  const Match before = capped(context_, max_match_);
  context_ = capped(context_, max_match_ + 1);
  context_ =
      capped({edge(find_edge(context_.state, token)).to, context_.length + 1}, max_match_ + 1);
  for (State state = context_.state; state != kRoot; state = node(state).link) ++node(state).count;
  for (State state = before.state; state != kNone; state = node(state).link) {
    ++node(state).continuations;
    rank(node(state), find_edge(state, token));
  }
}

// Puts an edge whose count has grown by one where it belongs among the most frequent ones.
void SuffixAutomaton::rank(Node& from, std::int32_t edge_index) {
  const std::int32_t count = node(edge(edge_index).to).count;
  auto& ranks = from.ranked;
  std::size_t place = 0;
  while (place < kRanked && ranks[place] >= 0 && ranks[place] != edge_index &&
         node(edge(ranks[place]).to).count > count) {
    ++place;
  }
  if (place == kRanked) return;
  std::size_t last = place;  // those from `place` on move down, up to its old place or the end
  while (last + 1 < kRanked && ranks[last] != edge_index) ++last;
  for (; last > place; --last) ranks[last] = ranks[last - 1];
  ranks[place] = edge_index;
}

void SuffixAutomaton::append(TokenId token) {
  SPECDEC_CHECK(size_ < kMaxTokens, "a text of ", size_, " tokens");
  extend(token);
  count_token(token);
  ++size_;
}

SuffixAutomaton::Match SuffixAutomaton::repeated_suffix() const {
  Match match = capped(context_, max_match_);
  if (match.state == kRoot || node(match.state).count > 1) return match;
  match.state = node(match.state).link;
  match.length = node(match.state).length;
  return match;
}

SuffixAutomaton::Match SuffixAutomaton::advance(Match match, TokenId token) const {
  for (;;) {
    const std::int32_t found = find_edge(match.state, token);
    if (found >= 0) return capped({edge(found).to, match.length + 1}, max_match_);
    if (match.state == kRoot) return {};
    match.state = node(match.state).link;
    match.length = node(match.state).length;
  }
}

SuffixAutomaton::Match SuffixAutomaton::shorter(Match match) const {
  if (match.state == kRoot) return {};
  const State link = node(match.state).link;
  return {link, node(link).length};
}

std::size_t SuffixAutomaton::ranked(State state, std::array<Continuation, kRanked>& out) const {
  std::size_t count = 0;
  for (const std::int32_t index : node(state).ranked) {
    if (index < 0) break;
    const Edge& found = edge(index);
    out[count++] = {found.token, found.to, node(found.to).count};
  }
  return count;
}

std::int32_t SuffixAutomaton::occurrences(const TokenId* tokens, std::size_t count) const {
  State state = kRoot;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t found = find_edge(state, tokens[i]);
    if (found < 0) return 0;
    state = edge(found).to;
  }
  return node(state).count;
}

}  // namespace specdec
