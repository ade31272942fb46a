// specdec_native._core.BytePairs: from text to token ids.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "core/error.h"
#include "text/byte_pairs.h"

namespace py = pybind11;

namespace specdec {
namespace {

using Texts = py::typing::List<py::str>;
// As pre-tokenisers give them: (word, (start, end)).
using Words = py::typing::List<py::typing::Tuple<py::str, py::typing::Tuple<py::int_, py::int_>>>;
using Ids = py::array_t<TokenId, py::array::c_style | py::array::forcecast>;
using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

template <typename T, int Flags>
std::vector<T> to_vector(const py::array_t<T, Flags>& values) {
  return {values.data(), values.data() + values.size()};
}

// The UTF-8 bytes of a str, which must be valid Unicode.
std::string_view utf8(py::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw py::error_already_set();
  return {data, static_cast<std::size_t>(size)};
}

// The bytes of strings as the GGUF reader gives them: what is no UTF-8 as surrogate escapes.
std::vector<std::string> to_bytes(const Texts& texts) {
  std::vector<std::string> result;
  result.reserve(texts.size());
  for (const py::handle text : texts) {
    PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape");
    if (bytes == nullptr) throw py::error_already_set();
    result.emplace_back(std::string(py::reinterpret_steal<py::bytes>(bytes)));
  }
  return result;
}

// least: 0, or -1 where kNoToken may stand.
std::vector<TokenId> checked_ids(const Ids& ids, std::size_t tokens, TokenId least = 0) {
  std::vector<TokenId> result = to_vector(ids);
  for (const TokenId id : result) {
    if (id < least || id >= static_cast<std::int64_t>(tokens)) {
      throw InvalidArgument(str("token id ", id, " is outside the vocabulary of ", tokens));
    }
  }
  return result;
}

BytePairs from_merges(const Texts& tokens, const Ids& pieces, const Texts& merges,
                      bool ignore_merges) {
  std::vector<std::string> texts = to_bytes(tokens);
  const std::vector<TokenId> ids = checked_ids(pieces, texts.size());
  const std::vector<std::string> lines = to_bytes(merges);
  const py::gil_scoped_release unlocked;
  return BytePairs::from_merges(std::move(texts), ids, lines, ignore_merges);
}

BytePairs from_scores(const Texts& tokens, const Ids& pieces, const Floats& scores, const Ids& runs,
                      const Ids& byte_ids, TokenId unknown) {
  std::vector<std::string> texts = to_bytes(tokens);
  const std::vector<TokenId> ids = checked_ids(pieces, texts.size());
  const std::vector<TokenId> run_ids = checked_ids(runs, texts.size());
  const std::vector<float> values = to_vector(scores);
  std::array<TokenId, 256> bytes;
  if (values.size() != texts.size() || byte_ids.size() != py::ssize_t{bytes.size()}) {
    throw InvalidArgument(str("there must be a score for each of ", texts.size(),
                              " tokens and an id for each of 256 bytes, but there are ",
                              values.size(), " and ", byte_ids.size()));
  }
  const std::vector<TokenId> of_bytes = checked_ids(byte_ids, texts.size(), kNoToken);
  std::copy_n(of_bytes.begin(), bytes.size(), bytes.begin());
  if (unknown < kNoToken || unknown >= static_cast<std::int64_t>(texts.size())) {
    throw InvalidArgument(
        str("the unknown token's id is ", unknown, ", outside the vocabulary of ", texts.size()));
  }
  const py::gil_scoped_release unlocked;
  return BytePairs::from_scores(std::move(texts), ids, values, run_ids, bytes, unknown);
}

std::vector<TokenId> encode_text(const BytePairs& model, const py::str& text) {
  const std::string_view bytes = utf8(text);
  std::vector<TokenId> ids;
  const py::gil_scoped_release unlocked;
  model.encode_text(bytes, ids);
  return ids;
}

std::vector<TokenId> encode_words(const BytePairs& model, const Words& words) {
  std::vector<std::string_view> texts;
  texts.reserve(words.size());
  for (const py::handle word : words) texts.push_back(utf8(word.cast<py::tuple>()[0]));
  std::vector<TokenId> ids;
  const py::gil_scoped_release unlocked;
  for (const std::string_view text : texts) model.encode(text, ids);
  return ids;
}

}  // namespace

void bind_text(py::module_& m) {
  py::class_<BytePairs>(m, "BytePairs", "Byte pair encoding with a vocabulary of ranked merges.")
      .def_static(
          "from_merges", &from_merges, py::arg("tokens"), py::arg("pieces"), py::arg("merges"),
          py::arg("ignore_merges"),
          "Of a list of merges 'left right', best first; raises GgufError, naming the entry,\n"
          "where one has parts that are no tokens. pieces: ids that text may become.")
      .def_static(
          "from_scores", &from_scores, py::arg("tokens"), py::arg("pieces"), py::arg("scores"),
          py::kw_only(), py::arg("runs"), py::arg("byte_ids"), py::arg("unknown"),
          "Of SentencePiece's scores. runs: ids of tokens of nothing but space marks, which\n"
          "win over all; byte_ids: the token of each byte, -1 for none; unknown: id or -1.")
      .def("find", &BytePairs::find, py::arg("text"), "The id of a piece, or -1.")
      .def("encode_text", &encode_text, py::arg("text"), "The ids of a text as one word.")
      .def("encode_words", &encode_words, py::arg("words"),
           "The ids of words, given as pre-tokenisers give them: (word, (start, end)).");
}

}  // namespace specdec
