// The extension module specdec_native._core: one bind_<topic>.cpp per topic, conversion only.
#include "bindings/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The compiled engine of specdec_native. Private: use the names of specdec_native.";
  m.attr("__version__") = SPECDEC_VERSION;
  specdec::bind_errors(m);
  specdec::bind_gguf(m);
  specdec::bind_gguf_writer(m);
  specdec::bind_quantize(m);
  specdec::bind_text(m);
  specdec::bind_backend(m);
  specdec::bind_engine(m);
  specdec::bind_heads(m);
  specdec::bind_bench(m);
  specdec::bind_testing(m);
}
