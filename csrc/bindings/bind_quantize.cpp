// specdec_native._core.quantize_file, and the recipes and rows that a converter of checkpoints
// needs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/python_strings.h"
#include "core/error.h"
#include "core/printable.h"
#include "gguf/quantize_file.h"
#include "gguf/reader.h"
#include "gguf/recipe.h"
#include "gguf/row_converter.h"

namespace specdec {
namespace {

namespace py = pybind11;

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

QuantizeResult quantize(const py::bytes& in, const py::bytes& out, const std::string& recipe,
                        bool pure, int threads, const py::bytes& importance,
                        std::uint64_t max_bytes, const py::object& progress) {
  QuantizeProgress report;
  if (!progress.is_none()) {
    report = [&progress](double fraction) {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      progress(fraction);
    };
  }
  const std::string in_path = in, out_path = out;
  const QuantizeOptions options = {recipe, pure, threads, importance, max_bytes};
  const py::gil_scoped_release release;
  return quantize_file(in_path, out_path, options, report);
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.emplace_back(recipe.name);
  return names;
}

std::pair<std::string, bool> recipe_type_of(const std::string& recipe, const std::string& name,
                                            const std::vector<std::size_t>& shape,
                                            const std::string& architecture, int layers,
                                            int experts, int heads_per_kv, bool tied_output,
                                            bool has_weights, bool pure) {
  const RecipeFacts facts = {architecture, layers, experts, heads_per_kv, tied_output, has_weights};
  const TypeChoice choice = recipe_type(find_recipe(recipe), facts, name, shape, pure);
  return {std::string(dtype_info(choice.type).name), choice.fallback};
}

// values [..., K] -> uint8 [..., bytes of a row]
py::array_t<std::uint8_t> quantize_rows(const std::string& dtype_name, const Floats& values,
                                        const std::string& name, int threads) {
  const auto dtype = dtype_from_name(dtype_name);
  if (!dtype) throw InvalidArgument(str("unknown type ", quoted(dtype_name)));
  if (values.ndim() == 0 || values.size() == 0) throw InvalidArgument("there are no rows");
  TensorView view;
  view.name = name;
  view.shape.assign(values.shape(), values.shape() + values.ndim());
  view.data = reinterpret_cast<const std::byte*>(values.data());
  view.bytes = static_cast<std::size_t>(values.nbytes());
  const DTypeInfo& info = dtype_info(*dtype);
  if (view.cols() % info.block_size != 0) {
    throw InvalidArgument(str("rows of ", view.cols(), " values are no whole blocks of ", info.name,
                              ", which hold ", info.block_size));
  }
  std::vector<py::ssize_t> shape(values.shape(), values.shape() + values.ndim());
  shape.back() = static_cast<py::ssize_t>(row_bytes(*dtype, view.cols()));
  py::array_t<std::uint8_t> out(shape);
  auto* bytes = reinterpret_cast<std::byte*>(out.mutable_data());
  const py::gil_scoped_release release;
  RowConverter(threads).convert(view, *dtype, 0, view.rows(), bytes, str("tensor ", quoted(name)));
  return out;
}

void bind_recipes(py::module_& m) {
  m.def("recipe_names", &recipe_names, "Names of the recipes, such as 'q4_k_m', best first.");
  m.def(
      "recipe_file_type", [](const std::string& recipe) { return find_recipe(recipe).file_type; },
      py::arg("recipe"), "The value of the key general.file_type in a file of this recipe.");
  m.def("recipe_type", &recipe_type_of, py::arg("recipe"), py::arg("name"), py::arg("shape"),
        py::kw_only(), py::arg("architecture"), py::arg("layers"), py::arg("experts") = 0,
        py::arg("heads_per_kv") = 1, py::arg("tied_output") = false, py::arg("has_weights") = false,
        py::arg("pure") = false,
        "(type, fallback) of a tensor under a recipe, as quantize_file chooses it.\n\n"
        "F32 for what is no matrix of weights. name: as in a GGUF file; shape: outermost first;\n"
        "tied_output: the model has no output.weight; has_weights: importance weights are given.\n"
        "fallback: rows are no whole blocks of the type meant for it, which is a simpler one now.");
  m.def("quantize_rows", &quantize_rows, py::arg("dtype"), py::arg("values"), py::kw_only(),
        py::arg("name") = "", py::arg("threads") = 0,
        "Rows of float32 [..., K] as bytes [..., row bytes] of a type such as 'Q4_K', threaded.\n\n"
        "Raises GgufError, naming the tensor, for a NaN, an infinity or a value beyond F16.");
}

}  // namespace

void bind_quantize(py::module_& m) {
  py::class_<QuantizedTensor>(m, "QuantizedTensor", "What became of one tensor.")
      .def_property_readonly("name", [](const QuantizedTensor& s) { return to_str(s.name); })
      .def_property_readonly("from_type",
                             [](const QuantizedTensor& s) { return gguf_type_name(s.from); })
      .def_property_readonly("to_type",
                             [](const QuantizedTensor& s) { return gguf_type_name(s.to); })
      .def_readonly("fallback", &QuantizedTensor::fallback)
      .def_readonly("unweighted", &QuantizedTensor::unweighted)
      .def_readonly("elements", &QuantizedTensor::elements)
      .def_readonly("bytes_before", &QuantizedTensor::bytes_before)
      .def_readonly("bytes_after", &QuantizedTensor::bytes_after);
  py::class_<QuantizeResult>(m, "QuantizeResult", "What quantize_file did.")
      .def_property_readonly("paths",
                             [](const QuantizeResult& s) {
                               std::vector<py::bytes> all(s.paths.begin(), s.paths.end());
                               return all;
                             })
      .def_readonly("tensors", &QuantizeResult::tensors)
      .def_readonly("bytes_before", &QuantizeResult::bytes_before)
      .def_readonly("bytes_after", &QuantizeResult::bytes_after);
  m.def("quantize_file", &quantize, py::arg("in_path"), py::arg("out_path"), py::arg("recipe"),
        py::kw_only(), py::arg("pure") = false, py::arg("threads") = 0,
        py::arg("importance") = py::bytes(), py::arg("max_bytes") = 0,
        py::arg("progress") = py::none(),
        "Writes in_path with its weights in the types of a recipe; paths as bytes (os.fsencode).");
  bind_recipes(m);
}

}  // namespace specdec
