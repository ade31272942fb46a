// Drafting heads: files of Medusa and EAGLE-3 heads and the drafters that use them.
#include <pybind11/stl.h>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "spec/drafters/eagle.h"
#include "spec/drafters/medusa.h"
#include "spec/static_tree.h"

namespace specdec {
namespace {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

void bind_medusa(py::module_& m) {
  py::class_<MedusaHeads, std::shared_ptr<MedusaHeads>>(m, "MedusaHeads",
                                                        "Medusa heads of a target, immutable.")
      .def_static(
          "load",
          [](const std::string& path, std::shared_ptr<Model> target) {
            return std::const_pointer_cast<MedusaHeads>(
                MedusaHeads::load(path, std::move(target), nullptr));
          },
          py::arg("path"), py::arg("target"), ReleaseGil(),
          "Loads a GGUF file of heads; raises IncompatibleModelsError if it does not fit.")
      .def_property_readonly("heads", [](const MedusaHeads& s) { return s.config().heads; });
  py::class_<MedusaDrafter, Drafter, std::shared_ptr<MedusaDrafter>>(m, "MedusaDrafter")
      .def(py::init([](std::shared_ptr<MedusaHeads> heads, RankPaths tree) {
             return std::make_shared<MedusaDrafter>(std::move(heads),
                                                    tree_of_paths(std::move(tree)));
           }),
           py::arg("heads"), py::arg("tree"));
}

void bind_eagle(py::module_& m) {
  py::class_<EagleHead, std::shared_ptr<EagleHead>>(m, "EagleHead",
                                                    "An EAGLE-3 head of a target, immutable.")
      .def_static(
          "load",
          [](const std::string& path, std::shared_ptr<Model> target) {
            return std::const_pointer_cast<EagleHead>(
                EagleHead::load(path, std::move(target), nullptr));
          },
          py::arg("path"), py::arg("target"), ReleaseGil(),
          "Loads a GGUF file of a head; raises IncompatibleModelsError if it does not fit.")
      .def_property_readonly("states", [](const EagleHead& s) { return s.config().states; });
  py::class_<EagleDrafter, Drafter, std::shared_ptr<EagleDrafter>>(m, "EagleDrafter")
      .def(py::init([](std::shared_ptr<EagleHead> head, std::int32_t n_ctx,
                       const std::string& kv_type, std::int32_t max_draft, std::int32_t branches,
                       RankPaths paths) {
             return std::make_shared<EagleDrafter>(
                 std::move(head), n_ctx, parse_kv_type(kv_type),
                 make_shape(max_draft, branches, std::move(paths)));
           }),
           py::arg("head"), py::arg("n_ctx"), py::arg("kv_type"), py::arg("max_draft"),
           py::arg("branches") = 0, py::arg("paths") = RankPaths{});
}

}  // namespace

void bind_heads(py::module_& m) {
  m.def(
      "heaviest_ranks",
      [](std::int32_t nodes, std::int32_t max_depth, std::int32_t branches) {
        return paths_of(heaviest_ranks(nodes, max_depth, branches));
      },
      py::arg("nodes"), py::arg("max_depth"), py::arg("branches"),
      "The paths of ranks of the default tree of so many nodes, the heaviest first.");
  bind_medusa(m);
  bind_eagle(m);
}

}  // namespace specdec
