#include "gguf/split.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "core/printable.h"

namespace specdec {
namespace {

using Shards = std::vector<std::unique_ptr<const GgufShard>>;

constexpr std::string_view kEnd = ".gguf";
constexpr std::size_t kDigits = 5;
constexpr std::string_view kBetween = "-of-";
// "-00001-of-00003.gguf"
constexpr std::size_t kSuffixBytes = 1 + kDigits + kBetween.size() + kDigits + kEnd.size();

std::optional<std::size_t> digits(std::string_view text) {
  std::size_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::size_t>(c - '0');
  }
  return value;
}

// How many parts the file says there are; 1 for a whole model. Programs that merge parts leave 0.
std::size_t parts_of(const GgufShard& shard) {
  const auto count = shard.metadata().find_uint(kSplitCountKey, kMaxParts);
  return std::max<std::size_t>(1, static_cast<std::size_t>(count.value_or(1)));
}

std::optional<std::uint64_t> tensors_of(const GgufShard& shard) {
  return shard.metadata().find_uint(kSplitTensorsKey);
}

// The name of a part, checked against what the file itself says.
SplitName name_of_part(const GgufShard& shard) {
  const std::size_t count = parts_of(shard);
  const std::size_t number = shard.metadata().get_uint(kSplitNumberKey, count - 1) + 1;
  const auto name = parse_split_name(shard.path());
  const std::string expected = split_path("NAME", number, count);
  if (!name) {
    throw GgufError(str(printable(shard.path()), ": this is part ", number, " of a model in ",
                        count, " files, but its name does not end as in ", expected,
                        ", so that the other parts cannot be found: give all parts such names"));
  }
  if (name->number != number || name->count != count) {
    throw GgufError(str(printable(shard.path()), ": by its name this is part ", name->number,
                        " of ", name->count, ", but keys '", kSplitNumberKey, "' and '",
                        kSplitCountKey, "' say ", number, " of ", count,
                        ": it was renamed, its name should end as in ", expected));
  }
  return *name;
}

void require_all(const SplitName& name, const std::string& opened) {
  constexpr std::size_t kListed = 4;
  std::string list;
  std::size_t missing = 0;
  for (std::size_t i = 1; i <= name.count; ++i) {
    const std::string path = split_path(name.prefix, i, name.count);
    if (path == opened || file_exists(path)) continue;
    if (++missing <= kListed) list += str(missing == 1 ? "" : ", ", printable(path));
  }
  if (missing == 0) return;
  throw GgufError(str(printable(opened), ": this is part ", name.number, " of a model in ",
                      name.count, " files, of which ", missing, missing == 1 ? " is" : " are",
                      " missing: ", list, missing > kListed ? ", ..." : "",
                      "; put all parts into one folder"));
}

// "3 parts with 7 tensors"
std::string set_text(const GgufShard& shard) {
  const std::size_t parts = parts_of(shard);
  const auto tensors = tensors_of(shard);
  return str(parts, parts == 1 ? " part" : " parts", " with ",
             tensors ? str(*tensors) : std::string("an unknown number of"), " tensors");
}

void require_same_set(const GgufShard& first, const GgufShard& shard) {
  if (parts_of(first) == parts_of(shard) && tensors_of(first) == tensors_of(shard)) return;
  throw GgufError(str(printable(shard.path()), ": it says that the model has ", set_text(shard),
                      ", but ", printable(first.path()), " says ", set_text(first),
                      ": they are not parts of one model"));
}

void require_tensor_count(const Shards& shards) {
  const auto expected = tensors_of(*shards[0]);
  std::uint64_t found = 0;
  for (const auto& shard : shards) found += shard->tensors().size();
  if (!expected || *expected == found) return;
  if (shards.size() == 1) {
    throw GgufError(str(printable(shards[0]->path()), ": it has ", found, " tensors, but key '",
                        kSplitTensorsKey, "' says ", *expected, ", and by key '", kSplitCountKey,
                        "' there are no other parts: the file was put together or edited wrongly; ",
                        "get it again, or merge its parts again (gguf-split --merge)"));
  }
  throw GgufError(str(printable(shards[0]->path()), ": the ", shards.size(), " parts have ", found,
                      " tensors, but key '", kSplitTensorsKey, "' says ", *expected,
                      ": a part is damaged or of another model"));
}

}  // namespace

std::optional<SplitName> parse_split_name(std::string_view path) {
  if (path.size() <= kSuffixBytes || !path.ends_with(kEnd)) return std::nullopt;
  const std::string_view suffix = path.substr(path.size() - kSuffixBytes);
  if (suffix[0] != '-' || suffix.substr(1 + kDigits, kBetween.size()) != kBetween) {
    return std::nullopt;
  }
  const auto number = digits(suffix.substr(1, kDigits));
  const auto count = digits(suffix.substr(1 + kDigits + kBetween.size(), kDigits));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - kSuffixBytes)), *number, *count};
}

std::string split_path(std::string_view prefix, std::size_t number, std::size_t count) {
  std::array<char, kSuffixBytes + 32> suffix = {};
  std::snprintf(suffix.data(), suffix.size(), "-%05zu-of-%05zu.gguf", number, count);
  return std::string(prefix) + suffix.data();
}

std::vector<std::unique_ptr<const GgufShard>> open_shards(const std::string& path) {
  auto opened = std::make_unique<const GgufShard>(path);
  Shards shards;
  if (parts_of(*opened) == 1) {
    opened->metadata().find_uint(kSplitNumberKey, 0);  // the number of the only part
    shards.push_back(std::move(opened));
    require_tensor_count(shards);
    return shards;
  }
  const SplitName name = name_of_part(*opened);
  require_all(name, path);
  for (std::size_t i = 1; i <= name.count; ++i) {
    auto shard = i == name.number
                     ? std::move(opened)
                     : std::make_unique<const GgufShard>(split_path(name.prefix, i, name.count));
    shards.push_back(std::move(shard));
  }
  for (const auto& shard : shards) {
    require_same_set(*shards[0], *shard);
    name_of_part(*shard);
  }
  require_tensor_count(shards);
  return shards;
}

}  // namespace specdec
