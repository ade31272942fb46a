#include "bindings/arguments.h"

#include <utility>

#include "core/error.h"
#include "spec/static_tree.h"

namespace specdec {

DType parse_kv_type(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "q8_0") return DType::kQ8_0;
  throw InvalidArgument(str("kv_type is '", name, "'; supported: f16, q8_0, f32"));
}

AcceptRule parse_rule(const std::string& name) {
  if (name == "coupled") return AcceptRule::kCoupled;
  if (name == "rejection") return AcceptRule::kRejection;
  throw InvalidArgument(str("acceptance is '", name, "'; supported: coupled, rejection"));
}

DraftShape make_shape(std::int32_t max_draft, std::int32_t branches, RankPaths paths) {
  if (branches < 0) throw InvalidArgument(str("a tree of ", branches, " branches"));
  DraftShape shape{max_draft, branches, {}};
  if (!paths.empty()) shape.fixed = tree_of_paths(std::move(paths));
  return shape;
}

}  // namespace specdec
