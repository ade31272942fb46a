#include "spec/token_corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/output_file.h"
#include "core/printable.h"
#include "model/vocabulary.h"

namespace specdec {
namespace {

constexpr char kMagic[8] = {'S', 'P', 'D', 'C', 'O', 'R', 'P', '1'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 32, kRecordHeaderBytes = 8, kIdBytes = 4;
// A file that grew beyond what is kept is cut at the next start; a bigger one is none of ours.
constexpr std::size_t kMaxFileBytes = 64 * TokenCorpus::kMaxTokens;
constexpr std::uint64_t kFnvOffset = 0xcbf29ce484222325ull, kFnvPrime = 0x100000001b3ull;

void put(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::uint64_t get(std::span<const std::byte> bytes, std::size_t offset, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[offset + i]) << (8 * i);
  }
  return value;
}

std::uint32_t checksum(std::span<const TokenId> text) {
  std::uint32_t hash = 0x811c9dc5u;  // FNV-1a, 32 bits
  for (const TokenId token : text) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<std::uint32_t>(token) >> shift) & 0xffu)) * 0x01000193u;
    }
  }
  return hash;
}

std::string header_bytes(const VocabularyStamp& stamp) {
  std::string out(kMagic, sizeof kMagic);
  put(out, kVersion, 4);
  put(out, stamp.size, 4);
  put(out, stamp.fingerprint, 8);
  put(out, 0, 8);
  return out;
}

std::string record_bytes(std::span<const TokenId> text) {
  std::string out;
  put(out, text.size(), 4);
  put(out, checksum(text), 4);
  for (const TokenId token : text) put(out, static_cast<std::uint32_t>(token), kIdBytes);
  return out;
}

std::filesystem::path file_path(const std::string& path) {
  return std::filesystem::path(std::u8string(path.begin(), path.end()));
}

// The whole file; empty if there is none.
std::string read_file(const std::string& path) {
  std::error_code code;
  const std::filesystem::path place = file_path(path);
  if (!std::filesystem::exists(place, code)) return {};
  if (!std::filesystem::is_regular_file(place, code)) {
    throw InvalidArgument(str("corpus ", printable(path), " is no regular file; name another"));
  }
  const auto size = std::filesystem::file_size(place, code);
  if (code || size > kMaxFileBytes) {
    throw InvalidArgument(str("corpus ", printable(path), " has ", size, " bytes; at most ",
                              kMaxFileBytes, " are read: name another file"));
  }
  std::ifstream file(place, std::ios::binary);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw InvalidArgument(str("corpus ", printable(path),
                              " cannot be read: ", std::generic_category().message(errno)));
  }
  return bytes;
}

}  // namespace

VocabularyStamp vocabulary_stamp(const GgufFile& model) {
  VocabularyStamp stamp;
  stamp.size = static_cast<std::uint32_t>(real_vocabulary_size(model.metadata()));
  const auto tokens = model.metadata().get_string_array("tokenizer.ggml.tokens");
  stamp.fingerprint = kFnvOffset;
  for (std::size_t id = 0; id < stamp.size; ++id) {
    for (const char c : tokens[id]) {
      stamp.fingerprint = (stamp.fingerprint ^ static_cast<unsigned char>(c)) * kFnvPrime;
    }
    stamp.fingerprint = (stamp.fingerprint ^ 0x100u) * kFnvPrime;  // the end of a string
  }
  return stamp;
}

TokenCorpus::TokenCorpus(std::string path, VocabularyStamp stamp)
    : path_(std::move(path)), stamp_(stamp) {
  const std::string bytes = read_file(path_);
  if (!bytes.empty()) read(std::as_bytes(std::span(bytes)));
  if (bytes.empty() || bytes.size() > kHeaderBytes + 2 * kIdBytes * kMaxTokens) {
    write_all();
    return;
  }
  if (!std::ofstream(file_path(path_), std::ios::binary | std::ios::app)) {
    throw OutputError(str("corpus ", printable(path_),
                          " cannot be written: ", std::generic_category().message(errno)));
  }
}

void TokenCorpus::fail(std::size_t offset, const std::string& what) const {
  throw InvalidArgument(str("corpus ", printable(path_), " is damaged at byte ", offset, ": ", what,
                            "; restore it, or delete it to start a new one"));
}

void TokenCorpus::read(std::span<const std::byte> bytes) {
  if (bytes.size() < kHeaderBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    throw InvalidArgument(str(printable(path_), " is no corpus of token texts (it does not begin ",
                              "with SPDCORP1); name another file"));
  }
  if (get(bytes, 8, 4) != kVersion) {
    throw InvalidArgument(str("corpus ", printable(path_), " has version ", get(bytes, 8, 4),
                              "; this build reads version ", kVersion));
  }
  if (get(bytes, 12, 4) != stamp_.size || get(bytes, 16, 8) != stamp_.fingerprint) {
    throw InvalidArgument(str("corpus ", printable(path_), " was written with another vocabulary (",
                              get(bytes, 12, 4), " tokens; this model has ", stamp_.size,
                              "); use one corpus file for each family of models"));
  }
  for (std::size_t at = kHeaderBytes; at < bytes.size();) {
    if (bytes.size() - at < kRecordHeaderBytes) fail(at, "the file ends inside a record's header");
    const std::size_t count = static_cast<std::size_t>(get(bytes, at, 4));
    const std::uint64_t expected = get(bytes, at + 4, 4);
    if (count < 1 || count > kMaxTokens) fail(at, str("a record of ", count, " tokens"));
    const std::size_t begin = at + kRecordHeaderBytes;
    if ((bytes.size() - begin) / kIdBytes < count) {
      fail(at, str("a record of ", count, " tokens in ", bytes.size() - begin, " bytes"));
    }
    std::vector<TokenId> text;
    text.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t id = get(bytes, begin + i * kIdBytes, kIdBytes);
      if (id >= stamp_.size) fail(begin + i * kIdBytes, str("token id ", id));
      text.push_back(static_cast<TokenId>(id));
    }
    if (checksum(text) != expected) fail(at, "the checksum of a record does not fit its tokens");
    tokens_ += count;
    texts_.push_back(std::move(text));
    at = begin + count * kIdBytes;
  }
  std::size_t dropped = 0;
  while (tokens_ > kMaxTokens) tokens_ -= texts_[dropped++].size();
  texts_.erase(texts_.begin(), texts_.begin() + static_cast<std::ptrdiff_t>(dropped));
}

void TokenCorpus::write_all() const {
  OutputFile file(path_);
  const std::string header = header_bytes(stamp_);
  file.write(header.data(), header.size());
  for (const auto& text : texts_) {
    const std::string record = record_bytes(text);
    file.write(record.data(), record.size());
  }
  file.commit();
}

bool TokenCorpus::append(std::span<const TokenId> text) {
  if (text.empty()) return false;
  text = text.last(std::min(text.size(), kMaxTokens / 2));
  texts_.emplace_back(text.begin(), text.end());
  tokens_ += text.size();
  if (tokens_ > kMaxTokens) {
    std::size_t dropped = 0;  // down to half, so that this is rare
    while (tokens_ > kMaxTokens / 2 && dropped + 1 < texts_.size()) {
      tokens_ -= texts_[dropped++].size();
    }
    texts_.erase(texts_.begin(), texts_.begin() + static_cast<std::ptrdiff_t>(dropped));
    write_all();
    return true;
  }
  std::error_code code;
  const auto size = std::filesystem::file_size(file_path(path_), code);
  if (code || size == 0) {  // somebody has deleted it: it begins anew
    write_all();
  } else {
    append_to_file(record_bytes(text), size);
  }
  return false;
}

// One write of one record, so that processes that share the file do not mix theirs. What a full
// disk left of it is taken back: a later record behind it could not be found.
void TokenCorpus::append_to_file(const std::string& record, std::uintmax_t size) const {
  std::ofstream file(file_path(path_), std::ios::binary | std::ios::app);
  if (file.write(record.data(), static_cast<std::streamsize>(record.size())).flush()) return;
  const int reason = errno;
  file.close();
  std::error_code ignored;
  std::filesystem::resize_file(file_path(path_), size, ignored);
  throw OutputError(str("corpus ", printable(path_),
                        " cannot be written: ", std::generic_category().message(reason)));
}

}  // namespace specdec
