// Backends: what computes. Opaque to Python.
#include <pybind11/stl.h>

#include "backend/backend.h"
#include "backend/cpu_info.h"
#include "backend/cuda_info.h"
#include "bindings/bindings.h"

namespace specdec {

namespace py = pybind11;

void bind_backend(py::module_& m) {
  // Held without const: pybind11 has no holder for pointers to const. Every method is const.
  py::class_<Backend, std::shared_ptr<Backend>>(m, "Backend",
                                                "What computes: the CPU, or the reference.")
      .def_property_readonly("name", &Backend::name)
      .def_property_readonly("threads", &Backend::threads)
      .def_property_readonly("device", &Backend::device,
                             "The number of the device in whose memory it computes; -1: the host.")
      .def_property_readonly("free_bytes", &Backend::free_bytes,
                             "What is left of that device's memory; None for the host.");

  m.def(
      "make_backend",
      [](const std::string& name, std::int32_t threads) {
        return std::const_pointer_cast<Backend>(make_backend(name, threads));
      },
      py::arg("name"), py::arg("threads") = 0,
      "Makes the backend 'cpu', 'ref', 'cuda' or 'cuda:N'; threads <= 0 means one per physical "
      "core.");

  py::class_<CpuInfo>(m, "CpuInfo", "Instruction-set levels of the CPU backend.")
      .def_readonly("detected", &CpuInfo::detected, "Levels that this machine has.")
      .def_readonly("compiled", &CpuInfo::compiled, "Levels that this build has.")
      .def_readonly("active", &CpuInfo::active, "The level in use.");
  m.def("cpu_info", &cpu_info,
        "Raises BackendUnavailableError where SPECDEC_CPU_ISA names an unknown or absent level.");

  py::class_<CudaInfo>(m, "CudaInfo", "What the CUDA backend of this build is.")
      .def_readonly("built", &CudaInfo::built, "Does this build have it?")
      .def_readonly("emulated", &CudaInfo::emulated, "Do the kernels run on the CPU, for tests?")
      .def_readonly("reason", &CudaInfo::reason, "Why it is not built.")
      .def_readonly("toolkit", &CudaInfo::toolkit, "Version of the CUDA toolkit.")
      .def_readonly("architectures", &CudaInfo::architectures,
                    "Compute capabilities that the kernels were compiled for.");
  m.def("cuda_info", &cuda_info);
}

}  // namespace specdec
