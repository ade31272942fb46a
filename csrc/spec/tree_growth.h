// How a tree of drafted tokens grows where each node must be scored before its children are known:
// by confidence (arXiv 2406.16858), or along a shape fixed before. Nodes are picked by rank, so
// they count as deterministic.
//
// By confidence: the weight of a node is the product of the probabilities along its path. In each
// step the heaviest nodes that are not expanded yet get children, as long as they are among those
// that would be proposed; at last the heaviest of all are proposed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "spec/proposal.h"
#include "spec/static_tree.h"

namespace specdec {

class TreeGrowth {
 public:
  // By confidence: at most `nodes` are proposed, at most `branches` children each.
  TreeGrowth(std::int32_t nodes, std::int32_t branches);
  // Along `shape`, which must outlive this object: its first `nodes` nodes.
  TreeGrowth(const RankTree& shape, std::int32_t nodes);

  // The children that a node can have.
  std::int32_t branches() const { return branches_; }

  // The nodes to be scored in the next step, ascending; none: the tree is done. The pending token
  // (-1) is not among them: its children are added first.
  std::vector<std::int32_t> next_frontier() const;

  // The children of a node, likeliest first; at most branches() are used.
  void add_children(std::int32_t node, std::span<const TokenProb> children);

  // The rows of the pass that scores a frontier: all nodes expanded before, in the order in which
  // they were, so that a row keeps its place from step to step; then the frontier. A row can see
  // its ancestors only within its own pass, hence the repetition.
  struct Rows {
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> parents;  // rows; -1 = the pending token
  };
  Rows rows(std::span<const std::int32_t> frontier) const;

  // Adds the proposed nodes to `proposal`, which is empty.
  void finish(Proposal& proposal) const;

 private:
  struct Node {
    TokenId token;
    std::int32_t parent;
    double prob;              // given the parent
    double weight;            // of the path
    std::int32_t shape = -1;  // its place in a fixed shape
    bool expanded = false;
  };
  static std::size_t index(std::int32_t node) { return static_cast<std::size_t>(node); }
  std::vector<std::int32_t> heaviest() const;
  bool has_children_in_shape(std::int32_t place) const;

  std::int32_t limit_, branches_;
  const RankTree* shape_ = nullptr;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> expanded_;  // nodes with children, in the order of their steps
};

}  // namespace specdec
