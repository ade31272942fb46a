// Byte strings of files as str and back. Python's str gets bytes that are no UTF-8 as surrogates
// (surrogateescape), so that tokens and names stay distinct and convert back to the same bytes.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace specdec {

inline pybind11::str to_str(std::string_view bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "surrogateescape");
  if (text == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(text);
}

// The bytes of a str made by to_str.
inline std::string to_bytes(const pybind11::str& text) {
  PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
  if (bytes == nullptr) throw pybind11::error_already_set();
  return std::string(pybind11::reinterpret_steal<pybind11::bytes>(bytes));
}

// Any os.PathLike, str or bytes, as the system's bytes (UTF-8 on Windows).
inline std::string path_bytes(const pybind11::object& path) {
  return std::string(pybind11::bytes(pybind11::module_::import("os").attr("fsencode")(path)));
}

inline pybind11::str path_str(const std::string& path) {
  return pybind11::module_::import("os").attr("fsdecode")(pybind11::bytes(path));
}

}  // namespace specdec
