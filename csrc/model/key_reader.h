// Typed access to the metadata keys of one architecture.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "gguf/reader.h"

namespace specdec {

// Bounds of what can sensibly be computed: they keep every product of dimensions far below 2^63.
inline constexpr std::uint64_t kMaxDim = 1u << 20;
inline constexpr std::uint64_t kMaxContext = 1u << 24;

// Reads one architecture's keys: "block_count" -> "llama.block_count". It remembers which were
// asked for, so that the others can be told from those that a family honours (unread_keys.h).
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file)
      : metadata_(file.metadata()), architecture_(metadata_.get_string("general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string key(const std::string& name) const { return architecture_ + "." + name; }
  bool was_read(const std::string& name) const { return read_.contains(name); }

  // The value as it lies in the file, or null.
  const MetadataValue* find(const std::string& name) const { return metadata_.find(read(name)); }

  // The first of several names for one thing that the file has, or else the first of all.
  std::string first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (find(name) != nullptr) return name;
    }
    return *names.begin();
  }

  // A dimension: at least 1.
  std::int32_t dim(const std::string& name) const {
    return positive(name, metadata_.get_uint(read(name), kMaxDim));
  }
  std::int32_t dim_or(const std::string& name, std::int32_t fallback) const {
    const auto value = metadata_.find_uint(read(name), kMaxDim);
    return value ? positive(name, *value) : fallback;
  }

  // Where 0 has a meaning.
  std::int32_t count_or(const std::string& name, std::int32_t fallback,
                        std::uint64_t max = kMaxDim) const {
    const auto value = metadata_.find_uint(read(name), max);
    return value ? static_cast<std::int32_t>(*value) : fallback;
  }

  // A per-layer value that must be the same in all layers; may be 0.
  std::int32_t uniform_count_or(const std::string& name, std::int32_t layers,
                                std::int32_t fallback) const {
    const auto values =
        metadata_.find_uint_or_array(read(name), static_cast<std::size_t>(layers), kMaxDim);
    if (!values) return fallback;
    for (const std::uint64_t value : *values) {
      if (value != values->front()) {
        throw GgufError(str("key ", key(name), " differs between layers (", values->front(), ", ",
                            value, "): models with layers of different shapes are not supported"));
      }
    }
    return static_cast<std::int32_t>(values->front());
  }
  // The same, at least 1.
  std::int32_t uniform_dim_or(const std::string& name, std::int32_t layers,
                              std::int32_t fallback) const {
    const std::int32_t value = uniform_count_or(name, layers, -1);
    return value < 0 ? fallback : positive(name, static_cast<std::uint64_t>(value));
  }

  bool flag_or(const std::string& name, bool fallback) const {
    return metadata_.find_bool(read(name)).value_or(fallback);
  }

  // One truth value per layer: an array of booleans or of 0 and 1, or one value for all.
  std::vector<bool> flags(const std::string& name, std::int32_t layers) const {
    const auto count = static_cast<std::size_t>(layers);
    if (!find(name)->is_array) return std::vector<bool>(count, metadata_.get_bool(key(name)));
    auto values = metadata_.find_bool_array(key(name));
    if (values->size() != count) {
      throw GgufError(str("key ", key(name), " has ", values->size(), " elements for ", layers,
                          " layers: the file is damaged"));
    }
    return *values;
  }

  double number_or(const std::string& name, double fallback, double min, double max) const {
    const double value = metadata_.find_float(read(name)).value_or(fallback);
    if (!(value >= min && value <= max)) {
      throw GgufError(str("key ", key(name), " is ", value, ", outside [", min, ", ", max,
                          "]: the file is damaged"));
    }
    return value;
  }

  std::string text_or(const std::string& name, const std::string& fallback) const {
    return std::string(metadata_.find_string(read(name)).value_or(fallback));
  }
  const Metadata& metadata() const { return metadata_; }

 private:
  std::string read(const std::string& name) const {
    read_.insert(name);
    return key(name);
  }

  std::int32_t positive(const std::string& name, std::uint64_t value) const {
    if (value == 0) throw GgufError(str("key ", key(name), " is 0: the file is damaged"));
    return static_cast<std::int32_t>(value);
  }

  const Metadata& metadata_;
  std::string architecture_;
  mutable std::set<std::string> read_;  // names that were asked for
};

}  // namespace specdec
