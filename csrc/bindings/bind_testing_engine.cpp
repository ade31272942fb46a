// `_core.testing`, engine part: a mask source that stands in for a grammar, and a drafter that
// proposes what it was told to.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/testing_support.h"
#include "engine/generator.h"
#include "engine/mask_source.h"
#include "spec/drafter.h"
#include "spec/drafters/medusa.h"

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

// Proposes the tokens of a given text, whatever the real one is: token i of `script` for the
// position first + i. As a tree, each of them has an elder sibling without children, the id below.
class ScriptedDrafter final : public Drafter {
 public:
  ScriptedDrafter(std::vector<TokenId> script, std::int32_t first, std::int32_t max_draft,
                  bool tree)
      : script_(std::move(script)), first_(first), max_draft_(max_draft), tree_(tree) {}

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return max_draft_; }

  Proposal propose(const DraftContext& context, std::int32_t budget) override {
    Proposal proposal;
    proposal.source = name_;
    const std::size_t most = static_cast<std::size_t>(std::min(budget, max_draft_));
    std::int32_t parent = -1;
    for (std::size_t i = context.tokens.size() - static_cast<std::size_t>(first_);
         i < script_.size() && proposal.tokens.size() + (tree_ ? 2 : 1) <= most; ++i) {
      if (tree_) push(proposal, std::max(script_[i] - 1, 0), parent);
      push(proposal, script_[i], parent);
      parent = proposal.size() - 1;
    }
    return proposal;
  }

 private:
  static void push(Proposal& proposal, TokenId token, std::int32_t parent) {
    proposal.tokens.push_back(token);
    proposal.parents.push_back(parent);
    proposal.prob_rows.push_back(-1);
  }

  std::string name_ = "script";
  std::vector<TokenId> script_;
  std::int32_t first_, max_draft_;
  bool tree_;
};

// Keeps the hidden rows it is handed, and proposes small trees of right and wrong tokens of a text
// that it is told.
class HiddenRecorder final : public Drafter {
 public:
  HiddenRecorder(std::vector<std::int32_t> layers, std::vector<TokenId> text)
      : layers_(std::move(layers)), text_(std::move(text)) {}

  const std::string& name() const override { return name_; }
  std::int32_t max_draft() const override { return 4; }
  std::vector<std::int32_t> hidden_layers() const override { return layers_; }
  std::int32_t hidden_rows_held(std::span<const TokenId>) const override { return held_; }

  void take_hidden(const DraftContext& context, const HiddenRows& hidden) override {
    const Backend& backend = context.target->backend();
    Workspace& ws = context.target->workspace();
    const auto count = layers_.size() * static_cast<std::size_t>(hidden.width);
    const auto row = backend.allocate(count * sizeof(float));
    for (std::int32_t i = 0; i < hidden.size(); ++i) {
      hidden.copy(backend, ws, i, layers_, row->f32());
      positions_.push_back(hidden.first_position + i);
      values_.resize(values_.size() + count);
      backend.download(ws, values_.data() + values_.size() - count, row->data(),
                       count * sizeof(float));
    }
  }

  // Below the pending token: a wrong one, the right one with a wrong and the right child.
  Proposal propose(const DraftContext& context, std::int32_t budget) override {
    Proposal proposal;
    proposal.source = name_;
    const std::size_t next = context.tokens.size();
    if (budget < 4 || next + 1 >= text_.size()) return proposal;
    const auto wrong = [&](TokenId token) { return (token + 1) % context.draw.vocab; };
    proposal.tokens = {wrong(text_[next]), text_[next], wrong(text_[next + 1]), text_[next + 1]};
    proposal.parents = {-1, -1, 1, 1};
    proposal.prob_rows.assign(4, -1);
    return proposal;
  }

  const std::vector<std::int32_t>& positions() const { return positions_; }
  // [positions, layers * E]
  Array<float> values() const {
    const auto rows = static_cast<py::ssize_t>(positions_.size());
    const auto size = static_cast<py::ssize_t>(values_.size());
    Array<float> out({rows, rows == 0 ? 0 : size / rows});
    std::copy(values_.begin(), values_.end(), out.mutable_data());
    return out;
  }
  void set_held(std::int32_t held) { held_ = held; }

 private:
  std::string name_ = "recorder";
  std::vector<std::int32_t> layers_;
  std::vector<TokenId> text_;
  std::vector<std::int32_t> positions_;
  std::vector<float> values_;
  std::int32_t held_ = 0;
};

// Text size, tokens, parents, prob_rows, confidences. No Python objects: a drafter may be destroyed
// while the GIL is released.
using Recorded = std::tuple<std::size_t, std::vector<TokenId>, std::vector<std::int32_t>,
                            std::vector<std::int32_t>, std::vector<float>>;

// Passes everything on to another drafter and keeps what it proposes.
class ProposalRecorder final : public Drafter {
 public:
  explicit ProposalRecorder(std::shared_ptr<Drafter> inner) : inner_(std::move(inner)) {}

  const std::string& name() const override { return inner_->name(); }
  std::int32_t max_draft() const override { return inner_->max_draft(); }
  bool prepare(const DraftContext& context) override { return inner_->prepare(context); }
  std::vector<std::int32_t> hidden_layers() const override { return inner_->hidden_layers(); }
  std::int32_t hidden_rows_held(std::span<const TokenId> tokens) const override {
    return inner_->hidden_rows_held(tokens);
  }
  void take_hidden(const DraftContext& context, const HiddenRows& hidden) override {
    inner_->take_hidden(context, hidden);
  }
  Proposal propose(const DraftContext& context, std::int32_t budget) override {
    Proposal proposal = inner_->propose(context, budget);
    proposals_.emplace_back(context.tokens.size(), proposal.tokens, proposal.parents,
                            proposal.prob_rows, proposal.confidences);
    return proposal;
  }
  void learn_tokens(const Proposal& proposal) override {
    std::get<1>(proposals_.back()) = proposal.tokens;
    inner_->learn_tokens(proposal);
  }
  void commit(std::span<const TokenId> tokens) override { inner_->commit(tokens); }
  void reset() override { inner_->reset(); }

  const std::vector<Recorded>& proposals() const { return proposals_; }

 private:
  std::shared_ptr<Drafter> inner_;
  std::vector<Recorded> proposals_;
};

py::bytes cache_bytes(Generator& generator) {
  ModelState& state = generator.session().state();
  const KvCache& cache = state.cache();
  SPECDEC_CHECK(cache.parts() == 1, "a cache of ", cache.parts(), " parts");
  const KvCacheView& view = cache.view(0);
  const std::size_t bytes = static_cast<std::size_t>(cache.length()) * view.row_bytes();
  std::string out;
  for (const std::byte* side : {view.keys, view.values}) {
    for (std::int32_t layer = 0; layer < view.layers; ++layer) {
      for (std::int32_t head = 0; head < view.kv_heads; ++head) {
        out.resize(out.size() + bytes);
        state.backend().download(state.workspace(), out.data() + out.size() - bytes,
                                 side + view.head_offset(layer, head), bytes);
      }
    }
  }
  return out;
}

}  // namespace

void bind_testing_engine(py::module_& m) {
  m.def("cache_bytes", &cache_bytes, py::arg("generator"),
        "The committed rows of the target's cache as stored: keys, then values.");
  m.def(
      "recordings",
      [](const Generator& generator) {
        const RecordingCounts counts = generator.session().state().recordings();
        return std::pair(counts.recorded, counts.repeated);
      },
      py::arg("generator"),
      "Passes of the target that a device recorded, and how often one was repeated.");
  m.def(
      "recordings",
      [](const MedusaDrafter& drafter) {
        const RecordingCounts counts = drafter.recordings();
        return std::pair(counts.recorded, counts.repeated);
      },
      py::arg("drafter"), "The same of the passes of its heads.");
  m.def(
      "device_waits",
      [](const Model& model) {
        std::size_t sum = 0;
        for (const LayerSpan& span : model.spans()) sum += span.backend->waits();
        return sum;
      },
      py::arg("model"), "How often the host has waited for the model's devices.");
  py::class_<HiddenRecorder, Drafter, std::shared_ptr<HiddenRecorder>>(m, "HiddenRecorder")
      .def(py::init<std::vector<std::int32_t>, std::vector<TokenId>>(), py::arg("layers"),
           py::arg("text"))
      .def_property_readonly("positions", &HiddenRecorder::positions)
      .def("values", &HiddenRecorder::values)
      .def("set_held", &HiddenRecorder::set_held, py::arg("held"));
  py::class_<ProposalRecorder, Drafter, std::shared_ptr<ProposalRecorder>>(m, "ProposalRecorder")
      .def(py::init<std::shared_ptr<Drafter>>(), py::arg("inner"))
      .def_property_readonly("proposals", &ProposalRecorder::proposals,
                             "(text size, tokens, parents, prob_rows, confidences) of each round.");
  py::class_<StepMask, MaskSource, std::shared_ptr<StepMask>>(m, "StepMask")
      .def(py::init<std::int32_t>(), py::arg("width"));
  py::class_<ScriptedDrafter, Drafter, std::shared_ptr<ScriptedDrafter>>(m, "ScriptedDrafter")
      .def(py::init<std::vector<TokenId>, std::int32_t, std::int32_t, bool>(), py::arg("script"),
           py::arg("first"), py::arg("max_draft"), py::arg("tree") = false);
}

}  // namespace specdec::testing
