// The suffix automaton of a growing token text: every substring is a path from the root, and each
// state stands for the substrings that end at the same places (Blumer et al. 1985, "The smallest
// automaton recognizing the subwords of a text"). Appending a token takes amortised constant time.
//
// Beside the structure it counts occurrences, for substrings of at most max_match + 1 tokens, as
// the text grows: how often a context of up to max_match tokens was followed by which token. The
// counts of longer ones are not kept, so that a token costs at most max_match + 1 updates even
// where the text repeats itself forever.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace specdec {

class SuffixAutomaton {
 public:
  using State = std::int32_t;
  static constexpr State kRoot = 0;
  static constexpr State kNone = -1;
  // So many continuations of each context are told apart; the others only count.
  static constexpr std::size_t kRanked = 3;

  // A context: `length` tokens, one of the substrings that `state` stands for.
  struct Match {
    State state = kRoot;
    std::int32_t length = 0;
  };

  struct Continuation {
    TokenId token;
    State state;         // of context + token, where the match has length + 1 at least
    std::int32_t count;  // how often it followed
  };

  // max_match: the longest context whose continuations are counted, at least 1.
  explicit SuffixAutomaton(std::int32_t max_match);

  // Any token id, negative ones too (they serve as separators of texts).
  void append(TokenId token);

  void clear();

  // The longest suffix of the text, of at most max_match tokens, that also occurred earlier.
  Match repeated_suffix() const;

  // The longest suffix of (matched text + token), of at most max_match tokens, that occurs here.
  // For reading another text along this one; amortised constant time.
  Match advance(Match match, TokenId token) const;

  // The longest proper suffix of a match that has other continuations; the root's length is 0.
  Match shorter(Match match) const;

  // How often the context was followed by any token.
  std::int32_t continuations(State state) const { return node(state).continuations; }

  // The most frequent continuations, ties by the latest occurrence; fewer, or none, where fewer
  // are known. Returns how many.
  std::size_t ranked(State state, std::array<Continuation, kRanked>& out) const;

  // Occurrences in the text of a substring of at most max_match + 1 tokens; 0 where it does not
  // occur. O(its length).
  std::int32_t occurrences(const TokenId* tokens, std::size_t count) const;

  std::size_t size() const { return size_; }
  std::size_t bytes() const;

 private:
  struct Node {
    std::int32_t length;  // of the longest substring it stands for
    State link;           // the state of the longest suffix that also ends elsewhere
    std::int32_t first_edge = -1;
    std::int32_t count = 0;
    std::int32_t continuations = 0;
    std::array<std::int32_t, kRanked> ranked = {-1, -1, -1};  // edges
  };
  struct Edge {
    State from;
    TokenId token;
    State to;
    std::int32_t next;  // edge of the same state, -1: the last
  };

  Node& node(State state) { return nodes_[static_cast<std::size_t>(state)]; }
  const Node& node(State state) const { return nodes_[static_cast<std::size_t>(state)]; }
  Edge& edge(std::int32_t index) { return edges_[static_cast<std::size_t>(index)]; }
  const Edge& edge(std::int32_t index) const { return edges_[static_cast<std::size_t>(index)]; }

  std::size_t slot(State state, TokenId token) const;
  std::int32_t find_edge(State state, TokenId token) const { return table_[slot(state, token)]; }
  void add_edge(State from, TokenId token, State to);
  void grow_table();
  State add_state(std::int32_t length);
  State clone_state(State original, std::int32_t length);
  void extend(TokenId token);
  void count_token(TokenId token);
  void rank(Node& from, std::int32_t edge_index);
  Match capped(Match match, std::int32_t limit) const;

  std::int32_t max_match_;
  std::size_t size_ = 0;
  State whole_ = kRoot;  // the state of the whole text
  Match context_;        // the suffix of at most max_match + 1 tokens
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<std::int32_t> table_;  // open addressing: (state, token) -> edge, -1 = free
};

}  // namespace specdec
