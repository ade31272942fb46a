// Drafting heads: files of Medusa and EAGLE-3 heads and the drafters that use them.
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "bindings/gguf_handle.h"
#include "spec/drafters/medusa.h"
#include "spec/static_tree.h"

namespace specdec {
namespace {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;
using Paths = std::vector<std::vector<std::int32_t>>;

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
      .def(py::init([](std::shared_ptr<MedusaHeads> heads, Paths tree) {
             return std::make_shared<MedusaDrafter>(std::move(heads),
                                                    tree_of_paths(std::move(tree)));
           }),
           py::arg("heads"), py::arg("tree"));
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
}

}  // namespace specdec
