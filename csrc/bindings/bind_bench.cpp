// What the bench measures with. The GIL is released while anything is timed.
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "backend/cuda_info.h"
#include "backend/machine_probe.h"
#include "backend/profiling_backend.h"
#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "core/error.h"
#include "engine/pass_timer.h"

namespace specdec {
namespace {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

void bind_profile(py::module_& m) {
  py::class_<OpProfile>(m, "OpProfile", "One kind of operation in a profile.")
      .def_readonly("op", &OpProfile::op)
      .def_readonly("types", &OpProfile::types, "Types of the weights, joined by '+'.")
      .def_readonly("calls", &OpProfile::calls)
      .def_readonly("seconds", &OpProfile::seconds)
      .def_readonly("bytes", &OpProfile::bytes, "Weights or cache that were read.")
      .def_readonly("multiply_adds", &OpProfile::multiply_adds, "With weights.");
  py::class_<ProfilingBackend, Backend, std::shared_ptr<ProfilingBackend>>(
      m, "ProfilingBackend", "Another backend, with a profile of its operations.")
      .def(py::init([](std::shared_ptr<Backend> inner) {
             return std::make_shared<ProfilingBackend>(std::move(inner));
           }),
           py::arg("inner"))
      .def("start", &ProfilingBackend::start, "Forgets what was measured and begins.")
      .def("stop", &ProfilingBackend::stop)
      .def("results", &ProfilingBackend::results);
}

}  // namespace

void bind_bench(py::module_& m) {
  bind_profile(m);
  py::class_<MachineProbe>(m, "MachineProbe", "What the machine could do at best.")
      .def(py::init<std::int32_t>(), py::arg("threads") = 0, ReleaseGil())
      .def_property_readonly("threads", &MachineProbe::threads)
      .def_property_readonly("buffer_bytes", &MachineProbe::buffer_bytes)
      .def("read_bandwidth", &MachineProbe::read_bandwidth, py::arg("all_threads"), ReleaseGil(),
           "Bytes per second of reading a buffer much larger than the last cache.")
      .def("int8_peak", &MachineProbe::int8_peak, py::arg("all_threads"), ReleaseGil(),
           "int8 multiply-adds per second of the active kernels, nothing fetched or decoded.");
  m.def("cuda_copy_bandwidth", cuda_copy_bandwidth, py::arg("device"), py::arg("bytes"),
        ReleaseGil(), "Bytes per second that a copy within a device's memory reads and writes.");
  py::class_<TypeTotals>(m, "TypeTotals", "The weights that every pass reads, of one type.")
      .def_readonly("type", &TypeTotals::type)
      .def_readonly("bytes", &TypeTotals::bytes)
      .def_readonly("multiply_adds", &TypeTotals::multiply_adds, "Per row of a pass.");
  py::class_<PassTimer>(m, "PassTimer", "Times passes of a model behind a filled cache.")
      .def(py::init([](std::shared_ptr<Model> model, std::int32_t n_ctx,
                       const std::string& kv_type) {
             return std::make_unique<PassTimer>(std::move(model), n_ctx, parse_kv_type(kv_type));
           }),
           py::arg("model"), py::arg("n_ctx"), py::arg("kv_type"))
      .def("fill", &PassTimer::fill, py::arg("depth"), ReleaseGil(),
           "Fills the cache up to `depth` positions, or cuts it back to them.")
      .def(
          "check_widths",
          [](PassTimer& self, const std::vector<std::int32_t>& widths) {
            self.check_widths(widths);
          },
          py::arg("widths"), ReleaseGil(),
          "Raises InternalError unless each width gives the bytes that single tokens give.")
      .def(
          "time_passes",
          [](PassTimer& self, const std::vector<std::int32_t>& widths) {
            return self.time_passes(widths);
          },
          py::arg("widths"), ReleaseGil(),
          "Milliseconds of one pass of each width, logits for every row, each rolled back.")
      .def("time_verify", &PassTimer::time_verify, py::arg("width"), py::arg("greedy"),
           ReleaseGil(), "Milliseconds of verify-and-accept alone, behind a pass of `width` rows.")
      .def("time_prefill", &PassTimer::time_prefill, py::arg("tokens"), py::arg("chunk"),
           ReleaseGil(), "Milliseconds of a prompt in passes of at most `chunk` tokens.")
      .def("weight_totals", &PassTimer::weight_totals);
}

}  // namespace specdec
