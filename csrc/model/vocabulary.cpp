#include "model/vocabulary.h"

#include "core/error.h"

namespace specdec {
namespace {

constexpr std::int64_t kUnusedTokenType = 5;  // gguf-py TokenType.UNUSED
constexpr std::size_t kMaxVocab = 1u << 22;

}  // namespace

std::int32_t real_vocabulary_size(const Metadata& metadata) {
  const MetadataValue* tokens = metadata.find("tokenizer.ggml.tokens");
  if (tokens == nullptr || !tokens->is_array || tokens->type != MetadataType::kString) {
    throw GgufError(
        "key tokenizer.ggml.tokens is missing or no array of strings: without its vocabulary a "
        "model cannot be used; convert it again with its tokenizer files present");
  }
  if (tokens->count == 0 || tokens->count > kMaxVocab) {
    throw GgufError(str("key tokenizer.ggml.tokens has ", tokens->count, " entries; expected 1 to ",
                        kMaxVocab));
  }
  std::size_t size = tokens->count;
  const auto types = metadata.find_int_array("tokenizer.ggml.token_type");
  if (types) {
    if (types->size() != size) {
      throw GgufError(str("key tokenizer.ggml.token_type has ", types->size(),
                          " entries, tokenizer.ggml.tokens has ", size, ": the file is damaged"));
    }
    while (size > 1 && (*types)[size - 1] == kUnusedTokenType) --size;
  }
  return static_cast<std::int32_t>(size);
}

}  // namespace specdec
