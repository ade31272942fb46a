// Backends: what computes. Opaque to Python.
#include <pybind11/stl.h>

#include "backend/backend.h"
#include "backend/cpu_info.h"
#include "bindings/bindings.h"

namespace specdec {

namespace py = pybind11;

void bind_backend(py::module_& m) {
  // Held without const: pybind11 has no holder for pointers to const. Every method is const.
  py::class_<Backend, std::shared_ptr<Backend>>(m, "Backend",
                                                "What computes: the CPU, or the reference.")
      .def_property_readonly("name", &Backend::name)
      .def_property_readonly("threads", &Backend::threads);

  m.def(
      "make_backend",
      [](const std::string& name, std::int32_t threads) {
        return std::const_pointer_cast<Backend>(make_backend(name, threads));
      },
      py::arg("name"), py::arg("threads") = 0,
      "Makes the backend 'cpu' or 'ref'; threads <= 0 means one per physical core.");

  py::class_<CpuInfo>(m, "CpuInfo", "Instruction-set levels of the CPU backend.")
      .def_readonly("detected", &CpuInfo::detected, "Levels that this machine has.")
      .def_readonly("compiled", &CpuInfo::compiled, "Levels that this build has.")
      .def_readonly("active", &CpuInfo::active, "The level in use.");
  m.def("cpu_info", &cpu_info,
        "Raises BackendUnavailableError where SPECDEC_CPU_ISA names an unknown or absent level.");
}

}  // namespace specdec
