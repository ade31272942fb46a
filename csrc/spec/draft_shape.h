// What shape a drafter with logits of its own proposes.
#pragma once

#include <cstdint>

#include "spec/static_tree.h"

namespace specdec {

struct DraftShape {
  std::int32_t max_draft = 4;  // nodes
  std::int32_t branches = 0;   // children of a node in a tree that grows by confidence; 0 = none
  RankTree fixed;              // or a fixed tree; empty = none

  bool is_chain() const { return branches == 0 && fixed.empty(); }
};

}  // namespace specdec
