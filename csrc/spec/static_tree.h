// Trees whose shape is fixed before anything is drafted: node i is the rank-th likeliest child of
// its parent, whatever tokens these turn out to be.
#pragma once

#include <cstdint>
#include <vector>

namespace specdec {

struct RankNode {
  std::int32_t parent =
      -1;  // index of the parent in the tree, less than the own; -1 = the pending token
  std::int32_t rank = 0;   // among the parent's children, 0 = the likeliest
  std::int32_t depth = 0;  // 0 = a child of the pending token
};

// Each starts with the nodes that matter most, so that every prefix is a tree too.
using RankTree = std::vector<RankNode>;

// The `nodes` heaviest paths of ranks of at most `max_depth` nodes, at most `branches` children
// each. The weight of a path is the product over its ranks r of 1 / (2 (r + 1)): each step down
// halves it, and a token of rank r is 1 / (r + 1) as likely as the first. Ties: shallower, then
// lower ranks.
RankTree heaviest_ranks(std::int32_t nodes, std::int32_t max_depth, std::int32_t branches);

// A tree given by the path of ranks of each node, as the configurations of Medusa write them:
// {{0}, {1}, {0, 0}}, in this order where parents stand before their children, else by length.
// Throws InvalidArgument for an empty path, a negative rank, a path twice, one whose parent is
// missing, or more than kMaxDraft nodes.
RankTree tree_of_paths(std::vector<std::vector<std::int32_t>> paths);

// The paths of a tree's nodes.
std::vector<std::vector<std::int32_t>> paths_of(const RankTree& tree);

// The most children of a node, and the nodes on the longest path.
std::int32_t most_children(const RankTree& tree);
std::int32_t depth_of(const RankTree& tree);

}  // namespace specdec
