#include "spec/static_tree.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "spec/drafter.h"

namespace specdec {
namespace {

using Path = std::vector<std::int32_t>;

std::string path_text(const Path& path) {
  std::string text = "(";
  for (std::size_t i = 0; i < path.size(); ++i) text += str(i == 0 ? "" : ", ", path[i]);
  return text + ")";
}

// Parents must stand before their children.
RankTree linked(const std::vector<Path>& paths) {
  RankTree tree;
  std::map<Path, std::int32_t> index;
  for (const Path& path : paths) {
    const Path parent(path.begin(), path.end() - 1);
    RankNode node;
    if (!parent.empty()) {
      const auto found = index.find(parent);
      if (found == index.end()) {
        throw InvalidArgument(str("the tree has a path ", path_text(path), " without its parent ",
                                  path_text(parent)));
      }
      node.parent = found->second;
    }
    node.rank = path.back();
    node.depth = static_cast<std::int32_t>(path.size()) - 1;
    index.emplace(path, static_cast<std::int32_t>(tree.size()));
    tree.push_back(node);
  }
  return tree;
}

struct Candidate {
  double cost;  // the inverse of the weight: exact, a product of small integers
  Path path;

  bool operator<(const Candidate& other) const {
    if (cost != other.cost) return cost < other.cost;
    if (path.size() != other.path.size()) return path.size() < other.path.size();
    return path < other.path;
  }
};

}  // namespace

RankTree heaviest_ranks(std::int32_t nodes, std::int32_t max_depth, std::int32_t branches) {
  std::vector<Path> chosen;
  std::set<Candidate> open = {{2.0, {0}}};
  while (static_cast<std::int32_t>(chosen.size()) < nodes && !open.empty()) {
    const Candidate best = *open.begin();
    open.erase(open.begin());
    chosen.push_back(best.path);
    // What can come next: the first child, and the next sibling. Both cost at least as much.
    if (static_cast<std::int32_t>(best.path.size()) < max_depth) {
      Candidate child = best;
      child.cost *= 2.0;
      child.path.push_back(0);
      open.insert(child);
    }
    const std::int32_t rank = best.path.back();
    if (rank + 1 < branches) {
      Candidate sibling = best;
      sibling.cost = best.cost / (rank + 1) * (rank + 2);
      sibling.path.back() = rank + 1;
      open.insert(sibling);
    }
  }
  return linked(chosen);
}

RankTree tree_of_paths(std::vector<Path> paths) {
  if (paths.empty() || paths.size() > static_cast<std::size_t>(kMaxDraft)) {
    throw InvalidArgument(str("a tree of ", paths.size(), " nodes; it must have 1 to ", kMaxDraft));
  }
  std::set<Path> seen;
  bool parents_first = true;
  for (const Path& path : paths) {
    if (path.empty()) throw InvalidArgument("the tree has an empty path");
    for (const std::int32_t rank : path) {
      if (rank < 0 || rank >= 1024) {
        throw InvalidArgument(
            str("the tree has a path ", path_text(path), "; ranks must be 0 to 1023"));
      }
    }
    const Path parent(path.begin(), path.end() - 1);
    parents_first = parents_first && (parent.empty() || seen.contains(parent));
    if (!seen.insert(path).second) {
      throw InvalidArgument(str("the tree has the path ", path_text(path), " twice"));
    }
  }
  if (!parents_first) {
    std::stable_sort(paths.begin(), paths.end(),
                     [](const Path& a, const Path& b) { return a.size() < b.size(); });
  }
  return linked(paths);
}

std::vector<Path> paths_of(const RankTree& tree) {
  std::vector<Path> paths;
  for (const RankNode& node : tree) {
    Path path = node.parent < 0 ? Path{} : paths[static_cast<std::size_t>(node.parent)];
    path.push_back(node.rank);
    paths.push_back(std::move(path));
  }
  return paths;
}

std::int32_t most_children(const RankTree& tree) {
  std::int32_t most = 0;
  for (const RankNode& node : tree) most = std::max(most, node.rank + 1);
  return most;
}

std::int32_t depth_of(const RankTree& tree) {
  std::int32_t depth = 0;
  for (const RankNode& node : tree) depth = std::max(depth, node.depth + 1);
  return depth;
}

}  // namespace specdec
