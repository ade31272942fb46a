// What shape a drafter with logits of its own proposes.
#pragma once

#include <cstdint>

#include "spec/static_tree.h"
#include "spec/tree_growth.h"

namespace specdec {

struct DraftShape {
  std::int32_t max_draft = 4;  // nodes
  std::int32_t branches = 0;   // children of a node in a tree that grows by confidence; 0 = none
  RankTree fixed;              // or a fixed tree; empty = none

  TreeGrowth tree(std::int32_t nodes) const {
    return fixed.empty() ? TreeGrowth(nodes, branches) : TreeGrowth(fixed, nodes);
  }
  bool is_chain() const { return branches == 0 && fixed.empty(); }
};

}  // namespace specdec
