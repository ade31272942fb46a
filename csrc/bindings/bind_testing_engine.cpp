// `_core.testing`, engine part: mask sources that stand in for a grammar.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <span>
#include <vector>

#include "bindings/testing_support.h"
#include "engine/mask_source.h"

namespace specdec::testing {
namespace {

// A toy grammar: after a token t only t + 1 ... t + width (modulo the vocabulary) are allowed. What
// is allowed at a position depends on the prefix that it really has.
class StepMask final : public MaskSource {
 public:
  explicit StepMask(std::int32_t width) : width_(width) {}

  bool masks(std::span<const TokenId> prefix, const Proposal& proposal, std::int32_t vocab,
             std::vector<std::uint32_t>& bits) override {
    const std::size_t words = (static_cast<std::size_t>(vocab) + 31) / 32;
    bits.assign((static_cast<std::size_t>(proposal.size()) + 1) * words, 0u);
    allow_after(prefix.back(), vocab, bits.data());
    for (std::int32_t i = 0; i < proposal.size(); ++i) {
      allow_after(proposal.tokens[static_cast<std::size_t>(i)], vocab,
                  bits.data() + (static_cast<std::size_t>(i) + 1) * words);
    }
    return true;
  }

 private:
  void allow_after(TokenId token, std::int32_t vocab, std::uint32_t* row) const {
    for (std::int32_t step = 1; step <= width_; ++step) {
      const std::uint32_t id = static_cast<std::uint32_t>((token + step) % vocab);
      row[id / 32] |= 1u << (id % 32);
    }
  }

  std::int32_t width_;
};

}  // namespace

void bind_testing_engine(py::module_& m) {
  py::class_<StepMask, MaskSource, std::shared_ptr<StepMask>>(m, "StepMask")
      .def(py::init<std::int32_t>(), py::arg("width"));
}

}  // namespace specdec::testing
