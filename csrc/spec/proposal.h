// What a drafter proposes: a tree of drafted tokens below the pending token, as flat arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/sampling_rule.h"
#include "core/dtype.h"

namespace specdec {

struct Proposal {
  std::vector<TokenId> tokens;        // [m]
  std::vector<std::int32_t> parents;  // [m], -1 = the pending token; parents[i] < i
  // [m], -1 = deterministic; else the row of `dists` that the token was drawn from, given its
  // earlier siblings. The drafter's one duty: this is exactly that distribution, or it is -1.
  std::vector<std::int32_t> prob_rows;
  std::vector<DistributionView>
      dists;           // weights [vocab], owned by the drafter until its next propose()
  std::string source;  // the drafter's name

  std::int32_t size() const { return static_cast<std::int32_t>(tokens.size()); }
  bool empty() const { return tokens.empty(); }

  // Appends a node of a chain.
  void push_chain(TokenId token, std::int32_t prob_row) {
    parents.push_back(size() - 1);
    tokens.push_back(token);
    prob_rows.push_back(prob_row);
  }
};

}  // namespace specdec
