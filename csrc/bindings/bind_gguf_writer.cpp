// specdec_native._core.GgufWriter: what a converter of checkpoints writes its file with.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/python_strings.h"
#include "core/error.h"
#include "core/printable.h"
#include "gguf/split.h"
#include "gguf/writer.h"

namespace specdec {
namespace {

namespace py = pybind11;

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
using Values = py::typing::Dict<py::str, py::object>;
// Name, type ("Q4_K"), shape (outermost first).
using Entry = std::tuple<py::str, std::string, std::vector<std::size_t>>;

MetadataType type_of(const py::dtype& dtype) {
  const auto size = dtype.itemsize();
  switch (dtype.kind()) {
    case 'b':
      return MetadataType::kBool;
    case 'u':
      return size == 1   ? MetadataType::kU8
             : size == 2 ? MetadataType::kU16
             : size == 4 ? MetadataType::kU32
                         : MetadataType::kU64;
    case 'i':
      return size == 1   ? MetadataType::kI8
             : size == 2 ? MetadataType::kI16
             : size == 4 ? MetadataType::kI32
                         : MetadataType::kI64;
    case 'f':
      if (size == 4) return MetadataType::kF32;
      if (size == 8) return MetadataType::kF64;
      [[fallthrough]];
    default:
      throw InvalidArgument(str("metadata of NumPy's kind '", dtype.kind(), size, "'"));
  }
}

// A NumPy array (of one dimension) or scalar.
void set_numpy(MetadataWriter& metadata, const std::string& key, const py::object& value) {
  const py::array numbers = py::module_::import("numpy").attr("ascontiguousarray")(value);
  const MetadataType type = type_of(numbers.dtype());
  if (py::isinstance<py::array>(value)) {
    metadata.set_numbers(key, type, numbers.data(), static_cast<std::size_t>(numbers.size()));
  } else {
    metadata.set_number(key, type, numbers.data());
  }
}

void set_int(MetadataWriter& metadata, const std::string& key, const py::int_& value) {
  const auto number = value.cast<std::int64_t>();
  if (number < 0 || number > std::numeric_limits<std::uint32_t>::max()) {
    metadata.set_number(key, MetadataType::kI64, &number);
  } else {
    metadata.set_u32(key, static_cast<std::uint32_t>(number));
  }
}

// A list of texts, or of numbers: int32, or float32 or bool where the first one is.
void set_list(MetadataWriter& metadata, const std::string& key, const py::list& values) {
  if (!values.empty() && py::isinstance<py::str>(values[0])) {
    std::vector<std::string> texts;
    for (const py::handle text : values) texts.push_back(to_bytes(text.cast<py::str>()));
    metadata.set_strings(key, texts);
    return;
  }
  const bool flags = !values.empty() && py::isinstance<py::bool_>(values[0]);
  const bool floats = !values.empty() && py::isinstance<py::float_>(values[0]);
  const char* dtype = flags ? "bool" : floats ? "float32" : "int32";
  set_numpy(metadata, key, py::module_::import("numpy").attr("array")(values, dtype));
}

void set_value(MetadataWriter& metadata, const std::string& key, const py::object& value) {
  if (py::isinstance<py::bool_>(value)) {
    const std::uint8_t flag = value.cast<bool>() ? 1 : 0;
    metadata.set_number(key, MetadataType::kBool, &flag);
  } else if (py::isinstance<py::str>(value)) {
    metadata.set_string(key, to_bytes(value));
  } else if (py::isinstance<py::list>(value)) {
    set_list(metadata, key, value);
  } else if (py::hasattr(value, "dtype")) {
    set_numpy(metadata, key, value);
  } else if (py::isinstance<py::int_>(value)) {
    set_int(metadata, key, value);
  } else if (py::isinstance<py::float_>(value)) {
    const float number = value.cast<float>();
    metadata.set_number(key, MetadataType::kF32, &number);
  } else {
    throw InvalidArgument(str("metadata key ", quoted(key), " has no value of a GGUF type"));
  }
}

// Python's owner of a writer, which it can let go at a known time.
class WriterHandle {
 public:
  WriterHandle(const py::object& path, const Values& metadata, const std::vector<Entry>& tensors,
               std::uint64_t max_bytes) {
    MetadataWriter values;
    for (const auto& [key, value] : metadata) {
      set_value(values, to_bytes(key.cast<py::str>()), py::reinterpret_borrow<py::object>(value));
    }
    std::vector<TensorPlan> plans;
    for (const auto& [name, type, shape] : tensors) {
      plans.push_back(plan_tensor(to_bytes(name), type, shape));
    }
    writer_ = std::make_unique<GgufWriter>(path_bytes(path), std::move(values), std::move(plans),
                                           kUsualAlignment, max_bytes);
  }

  GgufWriter& writer() {
    if (writer_ == nullptr) throw InvalidArgument("the writer is closed");
    return *writer_;
  }
  void close() { writer_.reset(); }

 private:
  std::unique_ptr<GgufWriter> writer_;
};

std::vector<py::str> paths(WriterHandle& self) {
  std::vector<py::str> all;
  for (const std::string& path : self.writer().paths()) all.push_back(path_str(path));
  return all;
}

void write(WriterHandle& self, const Bytes& data) {
  GgufWriter& writer = self.writer();
  const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
  const auto size = static_cast<std::size_t>(data.nbytes());
  const py::gil_scoped_release release;
  writer.write(bytes, size);
}

std::uint64_t finish(WriterHandle& self) {
  GgufWriter& writer = self.writer();
  const py::gil_scoped_release release;
  return writer.finish();
}

}  // namespace

void bind_gguf_writer(py::module_& m) {
  py::class_<WriterHandle>(
      m, "GgufWriter",
      "Writes a GGUF file, or the parts of a split model, under temporary names; finish() names\n"
      "them. At the end of a with block, and on close(), what is unfinished is removed.")
      .def(py::init<const py::object&, const Values&, const std::vector<Entry>&, std::uint64_t>(),
           py::arg("path"), py::arg("metadata"), py::arg("tensors"), py::kw_only(),
           py::arg("max_bytes") = 0,
           "metadata: in order; str, bool, int (u32, or i64), float (f32), a NumPy scalar or\n"
           "array (its own type), a list of str, or of bool, int (i32) or float (f32).\n"
           "tensors: name, type such as 'Q4_K' or 'I64', shape (outermost first).\n"
           "max_bytes: of a file; 0: one file. Raises OutputError for a path that cannot be\n"
           "written, before anything else.")
      .def_property_readonly("paths", &paths, "Of the files, in order.")
      .def("write", &write, py::arg("data"), "The next bytes of the current tensor.")
      .def("finish", &finish, "Names the files; returns the sum of their sizes.")
      .def("close", &WriterHandle::close)
      .def("__enter__", [](WriterHandle& self) -> WriterHandle& { return self; })
      .def(
          "__exit__",
          [](WriterHandle& self, const py::object&, const py::object&, const py::object&) {
            self.close();
          },
          py::arg("kind"), py::arg("error"), py::arg("trace"));
  m.def(
      "split_names",
      [](const py::str& name) {
        const std::string bytes = to_bytes(name);
        const auto part = parse_split_name(bytes);
        std::vector<py::str> all;
        for (std::size_t i = 1; part && i <= part->count; ++i) {
          all.push_back(to_str(split_path(part->prefix, i, part->count)));
        }
        if (!part) all.push_back(name);
        return all;
      },
      py::arg("name"),
      "Names of all parts of the split model of which this is one by its name; [name] of others.");
}

}  // namespace specdec
