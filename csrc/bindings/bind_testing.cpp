// `_core.testing`: what the Python tests call directly. Arithmetic of core/ here; the operations of
// a backend in bind_testing_ops.cpp and bind_testing_sampling.cpp.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "backend/accept_rule.h"
#include "backend/cuda_info.h"
#include "bindings/bindings.h"
#include "bindings/testing_support.h"
#include "core/dequantize.h"
#include "core/half.h"
#include "core/math.h"
#include "core/rng.h"
#include "core/thread_pool.h"
#include "gguf/quantize/quantize_row.h"

namespace specdec {
namespace testing {
namespace {

// f applied to each element.
template <typename Out, typename In, typename F>
Array<Out> map(const Array<In>& values, F f) {
  Array<Out> out(std::vector<py::ssize_t>(values.shape(), values.shape() + values.ndim()));
  for (py::ssize_t i = 0; i < values.size(); ++i) out.mutable_data()[i] = f(values.data()[i]);
  return out;
}

Array<float> dequantize(const std::string& dtype_name, const Array<std::uint8_t>& raw,
                        std::size_t n) {
  const DType dtype = parse_dtype(dtype_name);
  const DTypeInfo& info = dtype_info(dtype);
  const auto bytes = static_cast<std::size_t>(raw.size());
  if (n % info.block_size != 0 || bytes != n / info.block_size * info.block_bytes) {
    throw InvalidArgument(str(bytes, " bytes are not ", n, " values of ", dtype_name));
  }
  Array<float> out(static_cast<py::ssize_t>(n));
  dequantize_row(dtype, reinterpret_cast<const std::byte*>(raw.data()), out.mutable_data(), n);
  return out;
}

// weights: one for each value, or none.
Array<std::uint8_t> quantize_values(const std::string& dtype_name, const Array<float>& values,
                                    const std::optional<Array<float>>& weights) {
  const DType dtype = parse_dtype(dtype_name);
  const auto n = static_cast<std::size_t>(values.size());
  if (n % dtype_info(dtype).block_size != 0) {
    throw InvalidArgument(str(n, " values are not whole blocks of ", dtype_name));
  }
  if (weights) check_shape("weights", *weights, {values.size()});
  const float* factors = weights ? weights->data() : nullptr;
  Array<std::uint8_t> out(static_cast<py::ssize_t>(row_bytes(dtype, n)));
  auto* dst = reinterpret_cast<std::byte*>(out.mutable_data());
  const float* src = values.data();
  const py::gil_scoped_release unlocked;
  quantize_row(dtype, src, dst, n, factors);
  return out;
}

void bind_math(py::module_& m) {
  m.def("exp_f32", [](const Array<float>& x) { return map<float>(x, exp_f32); });
  m.def("exp_f64", [](const Array<double>& x) { return map<double>(x, exp_f64); });
  m.def("log_f64", [](const Array<double>& x) { return map<double>(x, log_f64); });
  m.def("neg_log1m_f64", [](const Array<double>& x) { return map<double>(x, neg_log1m_f64); });
  m.def("sin_cos_f64", [](const Array<double>& x) {
    return py::make_tuple(map<double>(x, [](double v) { return sin_cos_f64(v).sin; }),
                          map<double>(x, [](double v) { return sin_cos_f64(v).cos; }));
  });
  // Bits rather than floats: a NaN passed by value may lose its payload on the way.
  m.def("half_to_float_bits", [](const Array<std::uint16_t>& x) {
    return map<std::uint32_t>(x, [](std::uint16_t h) { return float_to_bits(half_to_float(h)); });
  });
  m.def("float_bits_to_half", [](const Array<std::uint32_t>& x) {
    return map<std::uint16_t>(x, [](std::uint32_t f) { return float_to_half(bits_to_float(f)); });
  });
  m.def("bf16_to_float_bits", [](const Array<std::uint16_t>& x) {
    return map<std::uint32_t>(x, [](std::uint16_t b) { return float_to_bits(bf16_to_float(b)); });
  });
}

void bind_random(py::module_& m) {
  m.def(
      "philox4x32_10",
      [](std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
        const Philox4 in = {{counter[0], counter[1], counter[2], counter[3]}};
        const Philox4 out = philox4x32_10(in, key[0], key[1]);
        return py::make_tuple(out.x[0], out.x[1], out.x[2], out.x[3]);
      },
      py::arg("counter"), py::arg("key"));
  m.def(
      "random_u64",
      [](std::uint64_t seed, std::uint64_t position, std::uint32_t purpose, std::uint32_t lane) {
        return random_u64({seed, position, static_cast<RngPurpose>(purpose), lane});
      },
      py::arg("seed"), py::arg("position"), py::arg("purpose"), py::arg("lane"));
  m.def("u64_to_unit", u64_to_unit);
}

void bind_rules(py::module_& m) {
  m.def("accepts", accepts, py::arg("coin"), py::arg("target"), py::arg("target_left"),
        py::arg("draft_prob"));
  m.def("fixed_probability", fixed_probability, py::arg("mass"), py::arg("total"));
  m.def("residual_mass", residual_mass, py::arg("target"), py::arg("draft"));
  m.def("draw_threshold", draw_threshold, py::arg("bits"), py::arg("total"));
  m.def("top_p_target", top_p_target, py::arg("top_p"), py::arg("total"));
  m.def("weight_to_mass", weight_to_mass, py::arg("weight"));
}

// Runs `rounds` regions of changing sizes (up to `most` tasks) on a pool; the number of regions in
// which some task did not run exactly once.
std::size_t count_bad_regions(int threads, std::size_t rounds, std::size_t most) {
  ThreadPool pool(threads);
  std::vector<std::atomic<int>> runs(most);
  std::size_t bad = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t tasks = 1 + round * 7919 % most;
    for (auto& count : runs) count.store(0, std::memory_order_relaxed);
    pool.parallel_for(tasks, [&](std::size_t task, int) { runs[task].fetch_add(1); });
    for (std::size_t i = 0; i < most; ++i) {
      if (runs[i].load() != (i < tasks ? 1 : 0)) {
        ++bad;
        break;
      }
    }
  }
  return bad;
}

void bind_pool(py::module_& m) {
  m.def("count_bad_regions", count_bad_regions, py::arg("threads"), py::arg("rounds"),
        py::arg("most"), py::call_guard<py::gil_scoped_release>());
  m.def(
      "throw_in_region",
      [](int threads, std::size_t tasks, std::size_t bad_task) {
        ThreadPool pool(threads);
        pool.parallel_for(tasks, [&](std::size_t task, int) {
          if (task == bad_task) throw InvalidArgument(str("task ", task));
        });
      },
      py::arg("threads"), py::arg("tasks"), py::arg("bad_task"));
}

}  // namespace
}  // namespace testing

void bind_testing(pybind11::module_& m) {
  namespace py = pybind11;
  py::module_ sub = m.def_submodule("testing", "Operations as NumPy in / NumPy out, for tests.");
  testing::bind_math(sub);
  testing::bind_random(sub);
  testing::bind_rules(sub);
  testing::bind_pool(sub);
  sub.def("dequantize", testing::dequantize, py::arg("dtype"), py::arg("raw"), py::arg("n"));
  sub.def("quantize", testing::quantize_values, py::arg("dtype"), py::arg("values"),
          py::arg("weights") = py::none());

  sub.def("cuda_self_test", cuda_self_test, py::arg("device"),
          py::call_guard<py::gil_scoped_release>());

  py::class_<testing::OpBackend> cls(sub, "Backend");
  cls.def(py::init<const std::string&, std::int32_t>(), py::arg("name"), py::arg("threads") = 0);
  cls.def_property_readonly("name", [](const testing::OpBackend& op) { return op.ops().name(); });
  cls.def_property_readonly("threads",
                            [](const testing::OpBackend& op) { return op.ops().threads(); });
  testing::bind_testing_ops(sub, cls);
  testing::bind_testing_sampling(sub, cls);
  testing::bind_testing_engine(sub);
  testing::bind_testing_spec(sub);
}

}  // namespace specdec
