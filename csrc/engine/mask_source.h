// The one call out of the decode loop: which tokens a grammar allows, once a round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "spec/proposal.h"

namespace specdec {

class MaskSource {
 public:
  virtual ~MaskSource() = default;

  // Fills bits [m + 1, ceil(vocab / 32)]: row 0 for the token after `prefix`, row i + 1 for the
  // token after node i of the proposal; a set bit allows the id. Rows of nodes that are themselves
  // forbidden are never read. Returns false, leaving bits alone, if everything is allowed.
  virtual bool masks(std::span<const TokenId> prefix, const Proposal& proposal, std::int32_t vocab,
                     std::vector<std::uint32_t>& bits) = 0;
};

}  // namespace specdec
