// `_core.testing`, drafting part: the suffix automaton, and the controller for the simulator.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/testing_support.h"
#include "spec/controller.h"
#include "spec/suffix_automaton.h"

namespace specdec::testing {
namespace {

using Continuations = std::vector<std::pair<TokenId, std::int32_t>>;

// (length of the longest repeated suffix, its continuations with counts, most frequent first, how
// often it was continued)
std::tuple<std::int32_t, Continuations, std::int32_t> look_up(const SuffixAutomaton& automaton,
                                                              SuffixAutomaton::Match match) {
  std::array<SuffixAutomaton::Continuation, SuffixAutomaton::kRanked> ranked;
  Continuations out;
  const std::size_t count = automaton.ranked(match.state, ranked);
  for (std::size_t i = 0; i < count; ++i) out.emplace_back(ranked[i].token, ranked[i].count);
  return {match.length, out, automaton.continuations(match.state)};
}

SuffixAutomaton::Match match_of(const SuffixAutomaton& automaton,
                                const std::vector<TokenId>& tokens) {
  SuffixAutomaton::Match match;
  for (const TokenId token : tokens) match = automaton.advance(match, token);
  return match;
}

void bind_automaton(py::module_& m) {
  py::class_<SuffixAutomaton>(m, "SuffixAutomaton")
      .def(py::init<std::int32_t>(), py::arg("max_match"))
      .def("append", &SuffixAutomaton::append, py::arg("token"))
      .def("repeated_suffix",
           [](const SuffixAutomaton& self) { return look_up(self, self.repeated_suffix()); })
      .def("match",
           [](const SuffixAutomaton& self, const std::vector<TokenId>& tokens) {
             return look_up(self, match_of(self, tokens));
           })
      .def("shorter_match",
           [](const SuffixAutomaton& self, const std::vector<TokenId>& tokens) {
             return look_up(self, self.shorter(match_of(self, tokens)));
           })
      .def("occurrences",
           [](const SuffixAutomaton& self, const std::vector<TokenId>& tokens) {
             return self.occurrences(tokens.data(), tokens.size());
           })
      .def_property_readonly("bytes", &SuffixAutomaton::bytes)
      .def("microseconds_per_append", [](SuffixAutomaton& self, const std::vector<TokenId>& text) {
        const auto begin = std::chrono::steady_clock::now();
        for (const TokenId token : text) self.append(token);
        const std::chrono::duration<double, std::micro> time =
            std::chrono::steady_clock::now() - begin;
        return time.count() / static_cast<double>(text.size());
      });
}

using PyOffer = std::tuple<std::size_t, std::vector<std::int32_t>, std::vector<float>>;
using PyNode = std::tuple<std::int32_t, float, bool>;
using PyDrafter = std::tuple<std::size_t, double, std::int32_t, std::int32_t, std::vector<PyNode>>;

std::tuple<std::int32_t, std::int32_t, std::vector<std::int32_t>, bool> choose(
    Controller& self, std::int32_t depth, std::int32_t room, const std::vector<PyOffer>& offers,
    const std::vector<bool>& usable, const std::vector<std::int32_t>& gaps) {
  std::vector<Offer> made;
  for (const auto& [drafter, parents, confidences] : offers) {
    made.push_back({drafter, parents, confidences});
  }
  Choice choice = self.choose(depth, room, made, usable, gaps);
  const bool plain = choice.drafter == Choice::kPlain;
  return {plain ? -1 : static_cast<std::int32_t>(choice.drafter), choice.length,
          std::move(choice.nodes), choice.probe};
}

void observe(Controller& self, std::int32_t width, std::int32_t depth, double pass_ms, bool cold,
             std::int32_t tokens, const std::vector<PyDrafter>& drafters, bool probe) {
  RoundOutcome round{width, depth, pass_ms, cold, tokens, {}};
  for (const auto& [drafter, ms, proposed, gap, nodes] : drafters) {
    DrafterOutcome outcome{drafter, ms, proposed, gap, proposed, {}};
    for (const auto& [at, confidence, stood] : nodes) {
      outcome.nodes.push_back({at, confidence, stood});
    }
    round.drafters.push_back(std::move(outcome));
  }
  self.observe(round, probe);
}

void bind_controller(py::module_& m) {
  py::class_<Controller>(m, "Controller")
      .def(py::init([](double expert_share, double experts, double used) {
             return std::make_unique<Controller>(ReadGrowth{expert_share, experts, used});
           }),
           py::arg("expert_share") = 0.0, py::arg("experts") = 1.0, py::arg("used") = 1.0)
      .def(
          "begin",
          [](Controller& self,
             const std::vector<std::tuple<std::int64_t, std::int32_t, bool>>& drafters) {
            std::vector<DrafterTraits> traits;
            for (const auto& [key, most, model] : drafters) traits.push_back({key, most, model});
            self.begin(std::move(traits));
          },
          py::arg("drafters"), "(key, max_draft, runs_model) of each drafter.")
      .def("asks_lookup", &Controller::asks_lookup)
      .def("choose", &choose, py::arg("depth"), py::arg("room"), py::arg("offers"),
           py::arg("usable"), py::arg("gaps"),
           "offers: (drafter, parents, confidences). Returns (drafter or -1, length, nodes, "
           "probe).")
      .def("observe", &observe, py::arg("width"), py::arg("depth"), py::arg("pass_ms"),
           py::arg("cold"), py::arg("tokens"), py::arg("drafters"), py::arg("probe"),
           "drafters: (drafter, ms, proposed, gap, [(depth, confidence, stood)]).")
      .def("credit", &Controller::credit)
      .def("plain_ms", &Controller::plain_ms, py::arg("depth"))
      .def("passes", [](const Controller& self, std::int32_t width, std::int32_t depth) {
        return self.costs().passes(width, depth);
      });
}

}  // namespace

void bind_testing_spec(py::module_& m) {
  bind_automaton(m);
  bind_controller(m);
}

}  // namespace specdec::testing
