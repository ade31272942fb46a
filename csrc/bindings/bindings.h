// The binding functions, one per topic.
#pragma once

#include <pybind11/pybind11.h>

namespace specdec {

void bind_errors(pybind11::module_& m);
void bind_gguf(pybind11::module_& m);
void bind_gguf_writer(pybind11::module_& m);
void bind_quantize(pybind11::module_& m);
void bind_backend(pybind11::module_& m);
void bind_bench(pybind11::module_& m);
void bind_engine(pybind11::module_& m);
void bind_heads(pybind11::module_& m);
void bind_text(pybind11::module_& m);
void bind_testing(pybind11::module_& m);

}  // namespace specdec
