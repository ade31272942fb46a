// Shared by the bind_testing*.cpp files: NumPy arrays in and out of a backend's memory, with shapes
// checked. Only the tests use `_core.testing`; the ops are reached through the Backend interface
// alone.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "core/error.h"

namespace specdec::testing {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

// Throws InvalidArgument unless `array` has these dimensions; -1 stands for any.
inline void check_shape(const char* name, const py::array& array,
                        std::initializer_list<py::ssize_t> expected) {
  const auto text = [](auto begin, auto end) {
    std::string out = "[";
    for (auto it = begin; it != end; ++it) {
      out += (it == begin ? "" : ", ") + (*it < 0 ? std::string("any") : std::to_string(*it));
    }
    return out + "]";
  };
  bool same = static_cast<std::size_t>(array.ndim()) == expected.size();
  const py::ssize_t* got = array.shape();
  for (std::size_t i = 0; same && i < expected.size(); ++i) {
    same = expected.begin()[i] < 0 || expected.begin()[i] == got[i];
  }
  if (!same) {
    throw InvalidArgument(str(name, " has shape ", text(got, got + array.ndim()), ", expected ",
                              text(expected.begin(), expected.end())));
  }
}

inline std::int32_t dim(const py::array& array, py::ssize_t axis) {
  return static_cast<std::int32_t>(array.shape(axis));
}

// A backend with a workspace of its own: what the ops need to run.
struct OpBackend {
  OpBackend(const std::string& name, std::int32_t threads)
      : backend(make_backend(name, threads)), workspace(backend->make_workspace()) {}

  const Backend& ops() const { return *backend; }
  Workspace& ws() const { return *workspace; }

  std::shared_ptr<const Backend> backend;
  std::unique_ptr<Workspace> workspace;
};

// Floats in a backend's memory.
class Floats {
 public:
  Floats(const OpBackend& op, std::size_t count)
      : op_(op), count_(count), buffer_(op.ops().allocate(count * sizeof(float))) {}

  Floats(const OpBackend& op, const Array<float>& values)
      : Floats(op, static_cast<std::size_t>(values.size())) {
    op.ops().upload(buffer_->data(), values.data(), count_ * sizeof(float));
  }

  float* data() const { return buffer_->f32(); }

  Array<float> numpy(std::vector<py::ssize_t> shape) const {
    Array<float> out(std::move(shape));
    SPECDEC_CHECK(static_cast<std::size_t>(out.size()) == count_, out.size(), " of ", count_);
    op_.ops().download(op_.ws(), out.mutable_data(), data(), count_ * sizeof(float));
    return out;
  }

 private:
  const OpBackend& op_;
  std::size_t count_;
  std::unique_ptr<Buffer> buffer_;
};

inline DType parse_dtype(const std::string& name) {
  const auto dtype = dtype_from_name(name);
  if (!dtype) throw InvalidArgument(str("unknown tensor type '", name, "'"));
  return *dtype;
}

// A copy of an int array as a vector; checked to be one-dimensional.
inline std::vector<std::int32_t> int_vector(const char* name, const Array<std::int32_t>& values) {
  check_shape(name, values, {-1});
  return {values.data(), values.data() + values.size()};
}

// Throws InvalidArgument unless parents[i] is in [-1, i).
inline void check_parents(const std::vector<std::int32_t>& parents) {
  for (std::size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] < -1 || parents[i] >= static_cast<std::int32_t>(i)) {
      throw InvalidArgument(str("parents[", i, "] is ", parents[i], ", expected -1 to ",
                                static_cast<std::int64_t>(i) - 1));
    }
  }
}

void bind_testing_ops(py::module_& m, py::class_<OpBackend>& cls);
void bind_testing_engine(py::module_& m);
void bind_testing_spec(py::module_& m);
void bind_testing_sampling(py::module_& m, py::class_<OpBackend>& cls);

}  // namespace specdec::testing
