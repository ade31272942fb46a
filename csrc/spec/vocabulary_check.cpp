#include "spec/vocabulary_check.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/printable.h"
#include "model/vocabulary.h"

namespace specdec {

void check_same_vocabulary(const GgufFile& target, const GgufFile& draft) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  const std::vector<std::string_view> target_tokens = target.metadata().get_string_array(kTokens);
  const std::vector<std::string_view> draft_tokens = draft.metadata().get_string_array(kTokens);
  const std::size_t target_size = static_cast<std::size_t>(real_vocabulary_size(target.metadata()));
  const std::size_t draft_size = static_cast<std::size_t>(real_vocabulary_size(draft.metadata()));
  const auto describe = [](const std::vector<std::string_view>& tokens, std::size_t size,
                           std::size_t id) {
    return id < size ? quoted(tokens[id]) : std::string("no such token");
  };
  for (std::size_t id = 0; id < std::max(target_size, draft_size); ++id) {
    if (id < target_size && id < draft_size && target_tokens[id] == draft_tokens[id]) continue;
    throw IncompatibleModelsError(str(
        "the draft model ", printable(draft.path()),
        " has another vocabulary than the target: token id ", id, " is ",
        describe(target_tokens, target_size, id), " in the target and ",
        describe(draft_tokens, draft_size, id), " in the draft (", target_size, " and ", draft_size,
        " tokens); use a draft of the same family, or draft=\"ngram\", which needs none"));
  }
}

}  // namespace specdec
