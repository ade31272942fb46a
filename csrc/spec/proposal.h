// What a drafter proposes: a tree of drafted tokens below the pending token, as flat arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/dtype.h"

namespace specdec {

struct Proposal {
  std::vector<TokenId> tokens;        // [m]; below 0: in `drawn`, see backend.h
  std::vector<std::int32_t> parents;  // [m], -1 = the pending token; parents[i] < i
  // [m], -1 = deterministic; else the row of `dists` that the token was drawn from, given its
  // earlier siblings. The drafter's one duty: this is exactly that distribution, or it is -1.
  std::vector<std::int32_t> prob_rows;
  std::vector<DistributionView>
      dists;  // weights [vocab], owned by the drafter until its next propose()
  const DrawnToken* drawn = nullptr;  // as `dists`, in the target's memory; null: all are known
  // [m], or empty: how likely the drafter thinks it that the node stands, given that its parent
  // does; -1 = it does not say. The controller measures what such a figure is worth.
  std::vector<float> confidences;
  std::string source;  // the drafter's name

  std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }
  float confidence(std::int32_t node) const {
    const std::size_t i = static_cast<std::size_t>(node);
    return i < confidences.size() ? confidences[i] : -1.0f;
  }

  void push_node(TokenId token, std::int32_t parent, std::int32_t prob_row, float confidence) {
    parents.push_back(parent);
    tokens.push_back(token);
    prob_rows.push_back(prob_row);
    confidences.push_back(confidence);
  }

  // Appends a node of a chain.
  void push_chain(TokenId token, std::int32_t prob_row, float confidence = -1.0f) {
    push_node(token, size() - 1, prob_row, confidence);
  }
};

}  // namespace specdec
