// Models split into several GGUF files, in the form of llama.cpp's gguf-split: NAME-00001-of-00003
// .gguf and so on. The first part has the model's metadata; each part has its number in split.no
// (from 0, while names count from 1), the number of parts in split.count, and the number of tensors
// of all parts in split.tensors.count.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/shard.h"

namespace specdec {

inline constexpr std::string_view kSplitNumberKey = "split.no";
inline constexpr std::string_view kSplitCountKey = "split.count";
inline constexpr std::string_view kSplitTensorsKey = "split.tensors.count";
inline constexpr std::size_t kMaxParts = 65535;  // split.count is a u16

struct SplitName {
  std::string prefix;         // path up to the last "-00001-of-00003.gguf"
  std::size_t number, count;  // as in the name: from 1
};

// nullopt for a path that does not end in "-DDDDD-of-DDDDD.gguf" with a number from 1 to the count.
std::optional<SplitName> parse_split_name(std::string_view path);

// Path of part `number` (from 1) of `count`.
std::string split_path(std::string_view prefix, std::size_t number, std::size_t count);

// Opens the file and, where it is a part of a split model, all others, which lie beside it: in
// order, checked to belong together; their tensors are not compared. Throws GgufError.
std::vector<std::unique_ptr<const GgufShard>> open_shards(const std::string& path);

}  // namespace specdec
