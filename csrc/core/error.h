// The exception classes of the library. Everything that can go wrong is thrown as one of these; the
// bindings map each to the Python class of the same name (specdec_native.errors).
// A message says what was wrong, the actual values, and what to do next.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace specdec {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A GGUF file is malformed, truncated or unsupported; names the field and the byte offset.
class GgufError : public Error {
 public:
  using Error::Error;
};

// A file could not be written: no space, no permission, no such folder.
class OutputError : public Error {
 public:
  using Error::Error;
};

// Two models that cannot be used together; names the first token that differs.
class IncompatibleModelsError : public Error {
 public:
  using Error::Error;
};

// The request does not fit into the context.
class ContextFullError : public Error {
 public:
  using Error::Error;
};

// A device or ISA level that this build or this machine does not have; says what to do.
class BackendUnavailableError : public Error {
 public:
  using Error::Error;
};

class DeviceError : public Error {
 public:
  using Error::Error;
};

class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

// The object is already executing a request (one at a time).
class BusyError : public Error {
 public:
  using Error::Error;
};

// A bad argument of a caller; becomes ValueError.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A broken invariant: our fault, never the user's.
class InternalError : public Error {
 public:
  using Error::Error;
};

// Joins its arguments with operator<<: str("row ", 3, " of ", 2).
template <typename... Args>
std::string str(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Always checked: the cheap conditions whose failure would corrupt a result.
#define SPECDEC_CHECK(cond, ...)                                                                   \
  do {                                                                                             \
    if (!(cond)) {                                                                                 \
      throw ::specdec::InternalError(::specdec::str("internal error at ", __FILE__, ":", __LINE__, \
                                                    ": ", #cond, ": ", __VA_ARGS__,                \
                                                    "; please report this"));                      \
    }                                                                                              \
  } while (false)

// Checked in debug and sanitizer builds only (SPECDEC_INVARIANTS is set by CMake): invariants of
// the design.
#ifdef SPECDEC_INVARIANTS
#define SPECDEC_DCHECK(cond, ...) SPECDEC_CHECK(cond, __VA_ARGS__)
#else
#define SPECDEC_DCHECK(cond, ...) \
  do {                            \
  } while (false)
#endif

}  // namespace specdec
