// Token texts of earlier requests, kept in a file for the suffix drafter.
//
// The file, little endian: a header of 32 bytes (the magic "SPDCORP1", u32 version, u32 vocabulary
// size, u64 vocabulary fingerprint, u64 zero), then records: u32 token count (1 to kMaxTokens), u32
// checksum of the ids (FNV-1a over their bytes), count times u32 token id. Only ids are stored, but
// they are the text: whoever may read the file can read what was written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gguf/reader.h"

namespace specdec {

// Which vocabulary token ids belong to.
struct VocabularyStamp {
  std::uint32_t size = 0;
  std::uint64_t fingerprint = 0;  // of all token strings in order
};

VocabularyStamp vocabulary_stamp(const GgufFile& model);

class TokenCorpus {
 public:
  // The newest texts of together at most so many tokens are kept.
  static constexpr std::size_t kMaxTokens = 1u << 18;

  // Reads `path`, or starts the file. Throws InvalidArgument where it is no corpus, damaged (with
  // the byte offset) or of another vocabulary; OutputError where it cannot be written.
  TokenCorpus(std::string path, VocabularyStamp stamp);

  // Oldest first.
  const std::vector<std::vector<TokenId>>& texts() const { return texts_; }
  std::size_t tokens() const { return tokens_; }

  // Adds a text at the end, also to the file. True if older ones were dropped for it: then the file
  // has been written anew. Throws OutputError.
  bool append(std::span<const TokenId> text);

 private:
  void read(std::span<const std::byte> bytes);
  void write_all() const;
  void append_to_file(const std::string& record, std::uintmax_t size) const;
  [[noreturn]] void fail(std::size_t offset, const std::string& what) const;

  std::string path_;
  VocabularyStamp stamp_;
  std::vector<std::vector<TokenId>> texts_;
  std::size_t tokens_ = 0;
};

}  // namespace specdec
