// Python view of the GGUF reader: metadata as Python values, the tensor directory, tensor contents.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/gguf_handle.h"
#include "bindings/python_strings.h"
#include "core/dequantize.h"
#include "core/error.h"
#include "gguf/reader.h"

namespace py = pybind11;

namespace specdec {
namespace {

template <typename T>
py::array copy_array(const MetadataValue& value) {
  py::array_t<T> result(static_cast<py::ssize_t>(value.count));
  if (value.count != 0) std::memcpy(result.mutable_data(), value.data, value.count * sizeof(T));
  return result;
}

py::array bool_array(const MetadataValue& value) {
  py::array_t<bool> result(static_cast<py::ssize_t>(value.count));
  for (std::size_t i = 0; i < value.count; ++i) {
    // A byte other than 0 and 1 must not become a C++ bool unconverted.
    result.mutable_data()[i] = value.data[i] != std::byte{0};
  }
  return result;
}

py::array number_array(const MetadataValue& value) {
  switch (value.type) {
    case MetadataType::kU8:
      return copy_array<std::uint8_t>(value);
    case MetadataType::kI8:
      return copy_array<std::int8_t>(value);
    case MetadataType::kU16:
      return copy_array<std::uint16_t>(value);
    case MetadataType::kI16:
      return copy_array<std::int16_t>(value);
    case MetadataType::kU32:
      return copy_array<std::uint32_t>(value);
    case MetadataType::kI32:
      return copy_array<std::int32_t>(value);
    case MetadataType::kF32:
      return copy_array<float>(value);
    case MetadataType::kBool:
      return bool_array(value);
    case MetadataType::kU64:
      return copy_array<std::uint64_t>(value);
    case MetadataType::kI64:
      return copy_array<std::int64_t>(value);
    case MetadataType::kF64:
      return copy_array<double>(value);
    default:
      throw InternalError("metadata array that is not of numbers");
  }
}

py::object to_python(const MetadataValue& value) {
  if (value.type == MetadataType::kString) {
    if (!value.is_array) return to_str(value.strings()[0]);
    const std::vector<std::string_view> strings = value.strings();
    py::list result(strings.size());
    for (std::size_t i = 0; i < strings.size(); ++i) result[i] = to_str(strings[i]);
    return result;
  }
  const py::array numbers = number_array(value);
  // A scalar as int, float or bool.
  return value.is_array ? py::object(numbers) : numbers.attr("item")(0);
}

py::object metadata(GgufHandle& handle) {
  if (!handle.metadata_cache) {
    py::dict result;
    for (const MetadataValue& value : handle.file->metadata().values()) {
      result[to_str(value.key)] = to_python(value);
    }
    handle.metadata_cache = std::move(result);
  }
  return handle.metadata_cache;
}

std::vector<py::ssize_t> array_shape(const std::vector<std::size_t>& shape) {
  return {shape.begin(), shape.end()};
}

py::array_t<std::uint8_t> tensor_bytes(const GgufHandle& handle, const py::str& name) {
  const TensorView view = handle.file->view(to_bytes(name));
  const std::size_t rows = view.rows();
  py::array_t<std::uint8_t> result(array_shape({rows, view.bytes / rows}));
  std::uint8_t* out = result.mutable_data();
  const py::gil_scoped_release unlocked;
  std::memcpy(out, view.data, view.bytes);
  return result;
}

py::array_t<float> dequantize(const GgufHandle& handle, const py::str& name) {
  const TensorView view = handle.file->view(to_bytes(name));
  py::array_t<float> result(array_shape(view.shape));
  float* out = result.mutable_data();
  const py::gil_scoped_release unlocked;
  const std::size_t cols = view.cols();
  const std::size_t stride = row_bytes(view.dtype, cols);
  for (std::size_t row = 0; row < view.rows(); ++row) {
    dequantize_row(view.dtype, view.data + row * stride, out + row * cols, cols);
  }
  return result;
}

void bind_tensor_info(py::module_& m) {
  py::class_<TensorInfo>(m, "GgufTensor", "One entry of a GGUF file's tensor directory.")
      .def_property_readonly("name", [](const TensorInfo& self) { return to_str(self.name); })
      .def_property_readonly(
          "dtype", [](const TensorInfo& self) { return gguf_type_name(self.type_number); },
          "Name of the element type, such as 'Q4_K'; 'unknown' for a number without a name.")
      .def_readonly("type_number", &TensorInfo::type_number)
      .def_property_readonly(
          "supported", [](const TensorInfo& self) { return self.dtype.has_value(); },
          "Whether this library can read the tensor's type.")
      .def_property_readonly(
          "shape",
          [](const TensorInfo& self) -> py::typing::Tuple<py::int_, py::ellipsis> {
            return py::tuple(py::cast(self.shape));
          },
          "Outermost dimension first, as in NumPy.")
      .def_readonly("bytes", &TensorInfo::bytes, "Size in bytes; 0 where the type is unknown.")
      .def("__repr__", [](const TensorInfo& self) {
        return py::str("<GgufTensor {!r} {} {}>")
            .format(to_str(self.name), gguf_type_name(self.type_number),
                    py::tuple(py::cast(self.shape)));
      });
}

const Metadata& metadata_of(const GgufHandle& handle) { return handle.file->metadata(); }

std::vector<py::str> to_strs(const std::vector<std::string_view>& strings) {
  std::vector<py::str> result;
  for (const std::string_view text : strings) result.push_back(to_str(text));
  return result;
}

// The typed getters that the model code uses, for the tests of their checks.
void bind_typed_metadata(py::module_ m) {
  m.def("metadata_uint", [](const GgufHandle& file, std::string_view key, std::uint64_t max) {
    return metadata_of(file).get_uint(key, max);
  });
  m.def("metadata_int", [](const GgufHandle& file, std::string_view key, std::int64_t min,
                           std::int64_t max) { return metadata_of(file).find_int(key, min, max); });
  m.def("metadata_float", [](const GgufHandle& file, std::string_view key) {
    return metadata_of(file).get_float(key);
  });
  m.def("metadata_bool", [](const GgufHandle& file, std::string_view key) {
    return metadata_of(file).get_bool(key);
  });
  m.def("metadata_string", [](const GgufHandle& file, std::string_view key) {
    return to_str(metadata_of(file).get_string(key));
  });
  m.def("metadata_uints",
        [](const GgufHandle& file, std::string_view key, std::size_t count, std::uint64_t max) {
          return metadata_of(file).get_uint_or_array(key, count, max);
        });
  m.def("metadata_ints",
        [](const GgufHandle& file, std::string_view key, std::int64_t min, std::int64_t max) {
          return metadata_of(file).find_int_array(key, min, max);
        });
  m.def("metadata_floats", [](const GgufHandle& file, std::string_view key) {
    return metadata_of(file).find_float_array(key);
  });
  m.def("metadata_strings", [](const GgufHandle& file, std::string_view key) {
    return to_strs(metadata_of(file).get_string_array(key));
  });
}

}  // namespace

void bind_gguf(py::module_& m) {
  bind_tensor_info(m);
  py::class_<GgufHandle>(m, "GgufFile",
                         "A GGUF file or the parts of a split one, mapped and checked when opened.")
      .def(py::init([](const py::object& path) {
             const std::string bytes = path_bytes(path);
             const py::gil_scoped_release unlocked;
             return GgufHandle{GgufFile::open(bytes), {}};
           }),
           py::arg("path"),
           "Open `path`, of a split model any part; raises GgufError for a damaged file.")
      .def_property_readonly("path",
                             [](const GgufHandle& self) { return path_str(self.file->path()); })
      .def_property_readonly(
          "paths",
          [](const GgufHandle& self) {
            std::vector<py::str> all;
            for (const std::string& path : self.file->paths()) all.push_back(path_str(path));
            return all;
          },
          "The files of a split model, in order; one file else.")
      .def_property_readonly("version", [](const GgufHandle& self) { return self.file->version(); })
      .def_property_readonly("alignment",
                             [](const GgufHandle& self) { return self.file->alignment(); })
      .def_property_readonly("file_size",
                             [](const GgufHandle& self) { return self.file->file_size(); })
      .def_property_readonly(
          "metadata", &metadata,
          "All metadata as a dict: numbers, bools, str; arrays as NumPy arrays or list[str].")
      .def_property_readonly(
          "tensors", [](const GgufHandle& self) { return py::cast(self.file->tensors()); },
          "The tensor directory, in file order.")
      .def("tensor_bytes", &tensor_bytes, py::arg("name"),
           "The stored bytes of a tensor as a uint8 array [rows, bytes per row] (a copy).")
      .def("dequantize", &dequantize, py::arg("name"), "A tensor's values as float32 (a copy).");
  // The submodule that bind_testing fills too.
  bind_typed_metadata(m.def_submodule("testing"));
}

}  // namespace specdec
