// specdec_native._core.quantize_file and what it returns.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bindings/bindings.h"
#include "gguf/quantize_file.h"

namespace specdec {
namespace {

namespace py = pybind11;

py::str name_of(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(text);
}

QuantizeResult quantize(const py::bytes& in, const py::bytes& out, const std::string& type,
                        int threads, const py::object& progress) {
  QuantizeProgress report;
  if (!progress.is_none()) {
    report = [&progress](double fraction) {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      progress(fraction);
    };
  }
  const std::string in_path = in, out_path = out;
  const DType dtype = parse_quantize_type(type);
  const py::gil_scoped_release release;
  return quantize_file(in_path, out_path, dtype, threads, report);
}

}  // namespace

void bind_quantize(py::module_& m) {
  py::class_<QuantizedTensor>(m, "QuantizedTensor", "What became of one tensor.")
      .def_property_readonly("name", [](const QuantizedTensor& s) { return name_of(s.name); })
      .def_property_readonly("from_type",
                             [](const QuantizedTensor& s) { return dtype_info(s.from).name; })
      .def_property_readonly("to_type",
                             [](const QuantizedTensor& s) { return dtype_info(s.to).name; })
      .def_readonly("fallback", &QuantizedTensor::fallback)
      .def_readonly("elements", &QuantizedTensor::elements)
      .def_readonly("bytes_before", &QuantizedTensor::bytes_before)
      .def_readonly("bytes_after", &QuantizedTensor::bytes_after);
  py::class_<QuantizeResult>(m, "QuantizeResult", "What quantize_file did.")
      .def_readonly("tensors", &QuantizeResult::tensors)
      .def_readonly("bytes_before", &QuantizeResult::bytes_before)
      .def_readonly("bytes_after", &QuantizeResult::bytes_after);
  m.def("quantize_file", &quantize, py::arg("in_path"), py::arg("out_path"), py::arg("type"),
        py::arg("threads") = 0, py::arg("progress") = py::none(),
        "Writes in_path with its weights in another type; paths as bytes (os.fsencode).");
}

}  // namespace specdec
