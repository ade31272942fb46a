// Models, drafters and the generator. The GIL is released around everything that computes or loads.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/gguf_handle.h"
#include "core/error.h"
#include "engine/generator.h"
#include "model/architectures.h"
#include "model/tensor_plan.h"
#include "spec/drafters/draft_model.h"
#include "spec/drafters/layer_skip.h"
#include "spec/drafters/ngram.h"
#include "spec/drafters/suffix.h"
#include "spec/vocabulary_check.h"

namespace specdec {
namespace {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

using TokenFunction = py::typing::Callable<std::vector<TokenId>(std::vector<TokenId>, bool)>;

// Called and destroyed by threads that have released the GIL.
TranslateTokens python_translator(const TokenFunction& translate) {
  const std::shared_ptr<py::object> function(new py::object(translate), [](py::object* object) {
    const py::gil_scoped_acquire gil;
    delete object;
  });
  return [function](std::span<const TokenId> tokens, bool at_start) {
    const py::gil_scoped_acquire gil;
    const std::vector<TokenId> list(tokens.begin(), tokens.end());
    return (*function)(list, at_start).cast<std::vector<TokenId>>();
  };
}

FinishReason parse_reason(const std::string& name) {
  if (name == "stop") return FinishReason::kStop;
  if (name == "length") return FinishReason::kLength;
  if (name == "cancelled") return FinishReason::kCancelled;
  throw InvalidArgument(str("finish reason '", name, "'; supported: stop, length, cancelled"));
}

std::shared_ptr<Model> load_model(const std::string& path, std::shared_ptr<Backend> backend,
                                  const py::object& progress,
                                  std::optional<std::shared_ptr<Backend>> rest,
                                  std::int32_t layers) {
  LoadProgress report;
  if (!progress.is_none()) {
    report = [&progress](double fraction) {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      progress(fraction);
    };
  }
  const Placement placement(std::move(backend), rest.value_or(nullptr), layers);
  const py::gil_scoped_release release;
  return std::const_pointer_cast<Model>(Model::load(path, placement, report));
}

void bind_model(py::module_& m) {
  py::class_<Model, std::shared_ptr<Model>>(m, "Model", "Weights and configuration, immutable.")
      .def_static(
          "load", &load_model, py::arg("path"), py::arg("backend"),
          py::arg("progress") = py::none(), py::arg("rest") = py::none(), py::arg("layers") = -1,
          "Loads a GGUF file; progress(fraction) is called as tensors are loaded. rest: the\n"
          "backend of all but the first `layers` layers, the output head included; -1 or more\n"
          "than there are: none of it is there.")
      .def_property_readonly(
          "file", [](const Model& s) { return GgufHandle{s.file(), {}}; },
          "The open file, sharing the mapping.")
      .def_property_readonly("architecture", [](const Model& s) { return s.config().architecture; })
      .def_property_readonly("name", [](const Model& s) { return s.config().name; })
      .def_property_readonly("layers", [](const Model& s) { return s.config().layers; })
      .def_property_readonly(
          "spans",
          [](const Model& s) {
            std::vector<std::pair<std::string, std::int32_t>> spans;
            for (const LayerSpan& one : s.spans()) {
              spans.emplace_back(one.backend->name(), one.size());
            }
            return spans;
          },
          "(backend, number of layers) in order; the output head is on the last.")
      .def_property_readonly("width", [](const Model& s) { return s.config().width; })
      .def_property_readonly(
          "vocab", [](const Model& s) { return s.config().vocab; },
          "Real tokens; longer rows of logits end in padding.")
      .def_property_readonly("vocab_rows", [](const Model& s) { return s.config().vocab_rows; })
      .def_property_readonly("trained_context",
                             [](const Model& s) { return s.config().trained_context; })
      .def_property_readonly("weight_bytes", [](const Model& s) { return s.weight_bytes(); });
}

std::shared_ptr<SuffixDrafter> make_suffix_drafter(
    std::int32_t max_draft, std::int32_t min_match, std::int32_t max_match, std::int32_t branches,
    double min_score, const std::optional<std::string>& corpus,
    const std::optional<std::shared_ptr<Model>>& model) {
  std::unique_ptr<TokenCorpus> texts;
  if (corpus) {
    if (!model) throw InvalidArgument("a corpus needs the model whose vocabulary it is in");
    texts = std::make_unique<TokenCorpus>(*corpus, vocabulary_stamp(*(*model)->file()));
  }
  return std::make_shared<SuffixDrafter>(
      SuffixOptions{max_draft, min_match, max_match, branches, min_score}, std::move(texts));
}

void bind_drafters(py::module_& m) {
  py::class_<Drafter, std::shared_ptr<Drafter>>(m, "Drafter", "A strategy that proposes tokens.")
      .def_property_readonly("name", &Drafter::name)
      .def_property_readonly("max_draft", &Drafter::max_draft)
      .def_property("adaptive", &Drafter::adaptive, &Drafter::set_adaptive,
                    "Whether the controller decides how much of it is used in a round.")
      .def_property_readonly("weight_bytes", &Drafter::weight_bytes)
      .def_property_readonly("cache_bytes", &Drafter::cache_bytes)
      .def_property_readonly("scratch_bytes", &Drafter::scratch_bytes)
      .def("reset", &Drafter::reset, ReleaseGil());
  py::class_<NgramDrafter, Drafter, std::shared_ptr<NgramDrafter>>(m, "NgramDrafter")
      .def(py::init<std::int32_t, std::int32_t, std::int32_t>(), py::arg("max_draft"),
           py::arg("min_ngram"), py::arg("max_ngram"));
  py::class_<SuffixDrafter, Drafter, std::shared_ptr<SuffixDrafter>>(m, "SuffixDrafter")
      .def(py::init(&make_suffix_drafter), py::arg("max_draft"), py::arg("min_match"),
           py::arg("max_match"), py::arg("branches"), py::arg("min_score"),
           py::arg("corpus") = py::none(), py::arg("model") = py::none(), ReleaseGil(),
           "corpus: path of a file with earlier sessions' texts in the vocabulary of `model`.");
  py::class_<DraftModelDrafter, Drafter, std::shared_ptr<DraftModelDrafter>>(m, "DraftModelDrafter")
      .def(py::init([](std::shared_ptr<Model> model, std::int32_t n_ctx, const std::string& kv_type,
                       std::int32_t max_draft, std::int32_t branches, RankPaths paths) {
             return std::make_shared<DraftModelDrafter>(
                 std::move(model), n_ctx, parse_kv_type(kv_type),
                 make_shape(max_draft, branches, std::move(paths)));
           }),
           py::arg("model"), py::arg("n_ctx"), py::arg("kv_type"), py::arg("max_draft"),
           py::arg("branches") = 0, py::arg("paths") = RankPaths{})
      .def_property_readonly("cached_rows", &DraftModelDrafter::cached_rows)
      .def("set_min_confidence", &DraftModelDrafter::set_min_confidence, py::arg("probability"),
           "A chain ends before a token whose distribution gives none so much probability.")
      .def(
          "reduce_vocabulary",
          [](DraftModelDrafter& self, std::vector<TokenId> scored, std::vector<TokenId> target_of) {
            self.reduce_vocabulary({std::move(scored), std::move(target_of)});
          },
          py::arg("scored"), py::arg("target_of") = std::vector<TokenId>{}, ReleaseGil(),
          "Only these tokens are proposed. target_of: the target's id of each draft token, or -1;\n"
          "empty: the same ids.")
      .def(
          "translate_text",
          [](DraftModelDrafter& self, const TokenFunction& translate) {
            self.translate_text(python_translator(translate));
          },
          py::arg("translate"),
          "translate(tokens, at_start) gives the draft's tokens of a piece of text.");
  py::class_<LayerSkipDrafter, Drafter, std::shared_ptr<LayerSkipDrafter>>(m, "LayerSkipDrafter")
      .def(py::init([](std::shared_ptr<Model> target, std::vector<std::int32_t> layers,
                       std::int32_t max_draft) {
             return std::make_shared<LayerSkipDrafter>(std::move(target), std::move(layers),
                                                       max_draft);
           }),
           py::arg("target"), py::arg("layers"), py::arg("max_draft"))
      .def_property_readonly("layers", &LayerSkipDrafter::layers);
  m.def("spread_layers", &spread_layers, py::arg("count"), py::arg("total"),
        "`count` of `total` layers: the first, the last, and between them at equal distances.");
  m.def("supported_architectures", &supported_architectures,
        "The values of general.architecture that can be run.");
  m.def(
      "check_model",
      [](const GgufHandle& handle) {
        naming_file(*handle.file, [&] { check_tensors(read_config(*handle.file), *handle.file); });
      },
      py::arg("file"), ReleaseGil(),
      "Raises GgufError, naming the key or tensor, if the file's model cannot be run.");
  m.def(
      "check_same_vocabulary",
      [](const GgufHandle& target, const GgufHandle& draft) {
        check_same_vocabulary(*target.file, *draft.file);
      },
      py::arg("target"), py::arg("draft"), ReleaseGil(),
      "Raises IncompatibleModelsError naming the first token id that differs.");
}

using LogprobList = std::vector<std::pair<float, std::vector<std::pair<TokenId, float>>>>;

LogprobList logprob_list(const StepResult& result) {
  LogprobList out;
  for (const PositionLogprobs& one : result.logprobs) {
    auto& [logprob, top] = out.emplace_back();
    logprob = one.logprob;
    for (const TokenLogprob& entry : one.top) top.emplace_back(entry.id, entry.logprob);
  }
  return out;
}

void bind_request(py::module_& m) {
  py::class_<MaskSource, std::shared_ptr<MaskSource>>(m, "MaskSource",
                                                      "Says which tokens a grammar allows.");
  py::class_<RequestParams>(m, "RequestParams", "What a request asks for.")
      .def(py::init([](float temperature, std::int32_t top_k, float top_p, float min_p,
                       std::uint64_t seed, const std::string& acceptance, std::int32_t max_tokens,
                       std::vector<TokenId> stop_tokens, std::int32_t prefill_chunk,
                       std::optional<std::shared_ptr<MaskSource>> mask, float typical_p,
                       float repetition_penalty, float presence_penalty, float frequency_penalty,
                       const std::vector<std::pair<TokenId, float>>& logit_bias,
                       std::int32_t logprobs, double synthetic_acceptance) {
             RequestParams params;
             params.draw.filter = FilterParams{temperature, top_k, top_p, min_p, typical_p};
             params.draw.penalties =
                 PenaltyParams{repetition_penalty, presence_penalty, frequency_penalty};
             for (const auto& [id, value] : logit_bias) params.logit_bias.push_back({id, value});
             params.logprobs = logprobs;
             params.draw.seed = seed;
             params.draw.rule = parse_rule(acceptance);
             params.max_tokens = max_tokens;
             params.stop_tokens = std::move(stop_tokens);
             params.prefill_chunk = prefill_chunk;
             params.mask = mask.value_or(nullptr);
             params.synthetic_acceptance = synthetic_acceptance;
             return params;
           }),
           py::kw_only(), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
           py::arg("min_p"), py::arg("seed"), py::arg("acceptance"), py::arg("max_tokens"),
           py::arg("stop_tokens"), py::arg("prefill_chunk"), py::arg("mask") = py::none(),
           py::arg("typical_p") = 1.0f, py::arg("repetition_penalty") = 1.0f,
           py::arg("presence_penalty") = 0.0f, py::arg("frequency_penalty") = 0.0f,
           py::arg("logit_bias") = std::vector<std::pair<TokenId, float>>(),
           py::arg("logprobs") = -1, py::arg("synthetic_acceptance") = -1.0);
  py::class_<StepResult>(m, "StepResult", "What one pass brought.")
      .def_readonly("prefill_progress", &StepResult::prefill_progress)
      .def_readonly("tokens", &StepResult::tokens)
      .def_property_readonly(
          "logprobs", &logprob_list,
          "For each token (logprob, [(id, logprob) of the likeliest]), if asked for.")
      .def_readonly("source", &StepResult::source)
      .def_readonly("drafted", &StepResult::drafted,
                    "So many of the first tokens were proposed by `source`.")
      .def_property_readonly("finish_reason", [](const StepResult& self) -> py::object {
        if (self.finish == FinishReason::kNone) return py::none();
        return py::str(finish_reason_name(self.finish));
      });
}

py::typing::Dict<py::str, py::object> stats_dict(const DecodeStats& stats) {
  py::typing::Dict<py::str, py::object> out;
  out["prompt_tokens"] = stats.prompt_tokens;
  out["reused_tokens"] = stats.reused_tokens;
  out["generated"] = stats.generated;
  out["rounds"] = stats.rounds;
  out["drafted"] = stats.drafted;
  out["accepted"] = stats.accepted;
  out["drafted_at"] = stats.drafted_at;
  out["accepted_at"] = stats.accepted_at;
  out["draft_lengths"] = stats.draft_lengths;
  out["prompt_ms"] = stats.prompt_ms;
  out["draft_prompt_ms"] = stats.draft_prompt_ms;
  out["decode_ms"] = stats.decode_ms;
  out["draft_ms"] = stats.draft_ms;
  out["verify_ms"] = stats.verify_ms;
  out["first_round_tokens"] = stats.first_round_tokens;
  out["first_round_ms"] = stats.first_round_ms;
  out["plain_round_ms"] = stats.plain_round_ms;
  out["plain_ms_estimate"] = stats.plain_ms_estimate;
  return out;
}

py::array_t<float> logits(Generator& self, const std::vector<TokenId>& tokens, std::int32_t first) {
  if (tokens.empty() || first < 0 || first >= static_cast<std::int32_t>(tokens.size())) {
    throw InvalidArgument(str("logits of ", tokens.size(), " tokens from index ", first));
  }
  const py::ssize_t rows = static_cast<py::ssize_t>(tokens.size()) - first;
  py::array_t<float> out({rows, static_cast<py::ssize_t>(self.model().config().vocab_rows)});
  float* data = out.mutable_data();
  const py::gil_scoped_release release;
  self.logits(tokens, first, data);
  return out;
}

void bind_generator(py::module_& m) {
  py::class_<Generator>(m, "Generator", "A target session and the request running on it.")
      .def(py::init([](std::shared_ptr<Model> model, std::int32_t n_ctx,
                       const std::string& kv_type) {
             return std::make_unique<Generator>(std::move(model), n_ctx, parse_kv_type(kv_type));
           }),
           py::arg("model"), py::arg("n_ctx"), py::arg("kv_type"))
      .def(
          "begin",
          [](Generator& self, std::vector<std::shared_ptr<Drafter>> drafters,
             const std::vector<TokenId>& prompt,
             RequestParams params) { self.begin(std::move(drafters), prompt, std::move(params)); },
          py::arg("drafters"), py::arg("prompt"), py::arg("params"), ReleaseGil(),
          "Starts a request; the cached prefix that the prompt shares with the last text is "
          "reused.")
      .def("step", &Generator::step, ReleaseGil(), "One pass: a prefill chunk or a round.")
      .def(
          "cut_output",
          [](Generator& self, std::int32_t count, const std::string& reason) {
            self.cut_output(count, parse_reason(reason));
          },
          py::arg("count"), py::arg("reason"), "Ends the request after its first `count` tokens.")
      .def("end", &Generator::end, ReleaseGil(),
           "The request is over: drafters that keep something of it do so now.")
      .def("stats", [](const Generator& self) { return stats_dict(self.stats()); })
      .def("cancel", &Generator::cancel, "Ends the running request; callable from any thread.")
      .def("logits", &logits, py::arg("tokens"), py::arg("first"),
           "float32 [len(tokens) - first, vocab_rows]: row i scores the token after first + i.")
      .def_property_readonly("n_ctx", &Generator::n_ctx)
      .def(
          "memory",
          [](const Generator& self) {
            std::vector<std::pair<std::string, std::map<std::string, std::size_t>>> out;
            for (const MemoryUse& use : self.memory()) {
              out.emplace_back(use.backend, std::map<std::string, std::size_t>{
                                                {"target_weights", use.target_weights},
                                                {"target_cache", use.target_cache},
                                                {"target_scratch", use.target_scratch}});
            }
            return out;
          },
          "(backend, bytes) of each span of the target's layers.");
}

}  // namespace

void bind_engine(py::module_& m) {
  bind_model(m);
  bind_drafters(m);
  bind_request(m);
  bind_generator(m);
}

}  // namespace specdec
