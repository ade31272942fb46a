// Typed access to the metadata keys of one architecture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "gguf/reader.h"

namespace specdec {

// Bounds of what can sensibly be computed: they keep every product of dimensions far below 2^63.
inline constexpr std::uint64_t kMaxDim = 1u << 20;
inline constexpr std::uint64_t kMaxContext = 1u << 24;

// Reads one architecture's keys: "block_count" -> "llama.block_count".
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file)
      : metadata_(file.metadata()), architecture_(metadata_.get_string("general.architecture")) {}

  const std::string& architecture() const { return architecture_; }
  std::string key(const std::string& name) const { return architecture_ + "." + name; }

  // A dimension: at least 1.
  std::int32_t dim(const std::string& name) const {
    return positive(name, metadata_.get_uint(key(name), kMaxDim));
  }
  std::int32_t dim_or(const std::string& name, std::int32_t fallback) const {
    const auto value = metadata_.find_uint(key(name), kMaxDim);
    return value ? positive(name, *value) : fallback;
  }

  // A per-layer value that must be the same in all layers.
  std::int32_t uniform_dim_or(const std::string& name, std::int32_t layers,
                              std::int32_t fallback) const {
    const auto values =
        metadata_.find_uint_or_array(key(name), static_cast<std::size_t>(layers), kMaxDim);
    if (!values) return fallback;
    for (const std::uint64_t value : *values) {
      if (value != values->front()) {
        throw GgufError(str("key ", key(name), " differs between layers (", values->front(), ", ",
                            value, "): models with layers of different shapes are not supported"));
      }
    }
    return positive(name, values->front());
  }

  // One truth value per layer, an array of booleans or of 0 and 1. `full_key`: with its prefix.
  std::vector<bool> flags(const std::string& full_key, std::int32_t layers) const {
    const auto values = metadata_.find_bool_array(full_key);
    if (values->size() != static_cast<std::size_t>(layers)) {
      throw GgufError(str("key ", full_key, " has ", values->size(), " elements for ", layers,
                          " layers: the file is damaged"));
    }
    return *values;
  }

  double number_or(const std::string& name, double fallback, double min, double max) const {
    const double value = metadata_.find_float(key(name)).value_or(fallback);
    if (!(value >= min && value <= max)) {
      throw GgufError(str("key ", key(name), " is ", value, ", outside [", min, ", ", max,
                          "]: the file is damaged"));
    }
    return value;
  }

  std::string text_or(const std::string& name, const std::string& fallback) const {
    return std::string(metadata_.find_string(key(name)).value_or(fallback));
  }
  const Metadata& metadata() const { return metadata_; }

 private:
  std::int32_t positive(const std::string& name, std::uint64_t value) const {
    if (value == 0) throw GgufError(str("key ", key(name), " is 0: the file is damaged"));
    return static_cast<std::int32_t>(value);
  }

  const Metadata& metadata_;
  std::string architecture_;
};

}  // namespace specdec
