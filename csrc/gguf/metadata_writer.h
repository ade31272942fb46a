// The metadata section of a GGUF file to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"

namespace specdec {

class MetadataWriter {
 public:
  // Entries of `source` in their order, each byte for byte.
  void copy(const Metadata& source);
  // Copies one entry; nothing where there is none.
  void copy(const Metadata& source, std::string_view key);
  void remove(std::string_view key);

  // Sets a value: in the place of an entry with this key, else at the end.
  void set_u16(std::string_view key, std::uint16_t value);
  void set_u32(std::string_view key, std::uint32_t value);
  void set_i32(std::string_view key, std::int32_t value);
  void set_string(std::string_view key, std::string_view value);
  // A scalar or an array of numbers, as its little-endian bytes.
  void set_number(std::string_view key, MetadataType type, const void* value);
  void set_numbers(std::string_view key, MetadataType type, const void* values, std::size_t count);
  void set_strings(std::string_view key, const std::vector<std::string>& values);

  std::size_t count() const { return entries_.size(); }
  std::string bytes() const;

 private:
  struct Entry {
    std::string key, bytes;
  };

  void set(std::string_view key, const std::string& type_and_value);

  std::vector<Entry> entries_;
};

}  // namespace specdec
