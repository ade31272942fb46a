// C++ exceptions become the Python classes of specdec_native.errors, which have the same names.
#include <new>

#include "bindings/bindings.h"
#include "core/error.h"

namespace specdec {
namespace {

namespace py = pybind11;

void raise(const char* class_name, const char* message) {
  const py::object type = py::module_::import("specdec_native.errors").attr(class_name);
  // Messages may quote bytes of a file or path; they never fail to decode.
  PyObject* text = PyUnicode_DecodeUTF8(
      message, static_cast<Py_ssize_t>(std::char_traits<char>::length(message)), "replace");
  PyErr_SetObject(type.ptr(), text);
  Py_XDECREF(text);
}

void translate(std::exception_ptr exception) {
  try {
    if (exception) std::rethrow_exception(exception);
  } catch (const GgufError& e) {
    raise("GgufError", e.what());
  } catch (const OutputError& e) {
    raise("OutputError", e.what());
  } catch (const IncompatibleModelsError& e) {
    raise("IncompatibleModelsError", e.what());
  } catch (const ContextFullError& e) {
    raise("ContextFullError", e.what());
  } catch (const BackendUnavailableError& e) {
    raise("BackendUnavailableError", e.what());
  } catch (const DeviceError& e) {
    raise("DeviceError", e.what());
  } catch (const OutOfMemoryError& e) {
    raise("OutOfMemoryError", e.what());
  } catch (const BusyError& e) {
    raise("BusyError", e.what());
  } catch (const InvalidArgument& e) {
    PyErr_SetString(PyExc_ValueError, e.what());
  } catch (const InternalError& e) {
    raise("InternalError", e.what());
  } catch (const Error& e) {
    raise("Error", e.what());
  } catch (const std::bad_alloc&) {
    raise("OutOfMemoryError",
          "not enough memory; use a smaller n_ctx, kv_type=\"f16\" or a smaller model");
  }
}

}  // namespace

void bind_errors(py::module_&) { py::register_local_exception_translator(translate); }

}  // namespace specdec
