#include "spec/tree_growth.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace specdec {

TreeGrowth::TreeGrowth(std::int32_t nodes, std::int32_t branches)
    : limit_(nodes), branches_(branches) {
  SPECDEC_CHECK(nodes > 0 && branches > 0, nodes, " nodes of ", branches, " branches");
}

TreeGrowth::TreeGrowth(const RankTree& shape, std::int32_t nodes)
    : limit_(std::min(nodes, static_cast<std::int32_t>(shape.size()))),
      branches_(most_children(shape)),
      shape_(&shape) {}

bool TreeGrowth::has_children_in_shape(std::int32_t place) const {
  return std::any_of(shape_->begin(), shape_->begin() + limit_,
                     [&](const RankNode& node) { return node.parent == place; });
}

// The nodes that would be proposed now, heaviest first. A parent weighs at least as much as its
// children and has a lower index, so it stands before them.
std::vector<std::int32_t> TreeGrowth::heaviest() const {
  std::vector<std::int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return nodes_[index(a)].weight > nodes_[index(b)].weight;
  });
  order.resize(std::min(order.size(), index(limit_)));
  return order;
}

std::vector<std::int32_t> TreeGrowth::next_frontier() const {
  std::vector<std::int32_t> next;
  if (shape_ != nullptr) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].expanded && has_children_in_shape(nodes_[i].shape)) {
        next.push_back(static_cast<std::int32_t>(i));
      }
    }
    return next;
  }
  const std::vector<std::int32_t> order = heaviest();
  const bool full = order.size() == index(limit_);
  for (const std::int32_t node : order) {
    if (static_cast<std::int32_t>(next.size()) == branches_) break;
    // A child weighs no more than its parent: can it still push out the lightest?
    const Node& one = nodes_[index(node)];
    if (full && one.weight <= nodes_[index(order.back())].weight) break;
    if (!one.expanded) next.push_back(node);
  }
  std::sort(next.begin(), next.end());
  return next;
}

TreeGrowth::Rows TreeGrowth::rows(std::span<const std::int32_t> frontier) const {
  std::vector<std::int32_t> nodes = expanded_;
  nodes.insert(nodes.end(), frontier.begin(), frontier.end());
  Rows rows;
  for (const std::int32_t node : nodes) {
    const Node& one = nodes_[index(node)];
    const auto parent = std::find(nodes.begin(), nodes.end(), one.parent);
    rows.tokens.push_back(one.token);
    rows.parents.push_back(one.parent < 0 ? -1 : static_cast<std::int32_t>(parent - nodes.begin()));
  }
  return rows;
}

void TreeGrowth::add_children(std::int32_t node, std::span<const TokenProb> children) {
  double weight = 1.0;
  std::int32_t place = -1;
  if (node >= 0) {
    Node& parent = nodes_[index(node)];
    weight = parent.weight;
    place = parent.shape;
    parent.expanded = true;
    expanded_.push_back(node);
  }
  if (shape_ == nullptr) {
    const std::size_t count = std::min(children.size(), index(branches_));
    for (const TokenProb& child : children.first(count)) {
      nodes_.push_back({child.id, node, child.prob, weight * child.prob});
    }
    return;
  }
  for (std::int32_t i = 0; i < limit_; ++i) {
    const RankNode& wanted = (*shape_)[index(i)];
    if (wanted.parent != place || index(wanted.rank) >= children.size()) continue;
    const TokenProb& child = children[index(wanted.rank)];
    nodes_.push_back({child.id, node, child.prob, weight * child.prob, i});
  }
}

void TreeGrowth::finish(Proposal& proposal) const {
  std::vector<std::int32_t> chosen = heaviest();
  if (shape_ != nullptr) std::sort(chosen.begin(), chosen.end());
  std::vector<std::int32_t> place(nodes_.size(), -1);
  for (const std::int32_t node : chosen) {
    const Node& one = nodes_[index(node)];
    place[index(node)] = proposal.size();
    proposal.push_node(one.token, one.parent < 0 ? -1 : place[index(one.parent)], -1,
                       static_cast<float>(one.prob));
  }
}

}  // namespace specdec
