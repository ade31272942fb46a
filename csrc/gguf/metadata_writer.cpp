#include "gguf/metadata_writer.h"

#include <algorithm>
#include <utility>

#include "gguf/little_endian.h"

namespace specdec {
namespace {

using gguf::append;
using gguf::append_string;

// Bytes of a value's data as it lies in the file.
std::size_t data_bytes(const MetadataValue& value) {
  if (value.type != MetadataType::kString) return value.count * metadata_type_bytes(value.type);
  std::size_t bytes = 0;
  for (const std::string_view text : value.strings()) bytes += sizeof(std::uint64_t) + text.size();
  return bytes;
}

std::string entry_bytes(const MetadataValue& value) {
  std::string out;
  append_string(out, value.key);
  if (value.is_array) {
    append(out, MetadataType::kArray);
    append(out, value.type);
    append<std::uint64_t>(out, value.count);
  } else {
    append(out, value.type);
  }
  return out.append(reinterpret_cast<const char*>(value.data), data_bytes(value));
}

std::string array_head(MetadataType type, std::size_t count) {
  std::string out;
  append(out, MetadataType::kArray);
  append(out, type);
  append<std::uint64_t>(out, count);
  return out;
}

}  // namespace

void MetadataWriter::copy(const Metadata& source) {
  for (const MetadataValue& value : source.values()) {
    entries_.push_back({std::string(value.key), entry_bytes(value)});
  }
}

void MetadataWriter::copy(const Metadata& source, std::string_view key) {
  const MetadataValue* value = source.find(key);
  if (value != nullptr) entries_.push_back({std::string(key), entry_bytes(*value)});
}

void MetadataWriter::remove(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
}

void MetadataWriter::set(std::string_view key, const std::string& type_and_value) {
  std::string bytes;
  append_string(bytes, key);
  bytes += type_and_value;
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) {
    found->bytes = std::move(bytes);
  } else {
    entries_.push_back({std::string(key), std::move(bytes)});
  }
}

void MetadataWriter::set_number(std::string_view key, MetadataType type, const void* value) {
  std::string out;
  append(out, type);
  set(key, out.append(static_cast<const char*>(value), metadata_type_bytes(type)));
}

void MetadataWriter::set_u16(std::string_view key, std::uint16_t value) {
  set_number(key, MetadataType::kU16, &value);
}

void MetadataWriter::set_u32(std::string_view key, std::uint32_t value) {
  set_number(key, MetadataType::kU32, &value);
}

void MetadataWriter::set_i32(std::string_view key, std::int32_t value) {
  set_number(key, MetadataType::kI32, &value);
}

void MetadataWriter::set_string(std::string_view key, std::string_view value) {
  std::string out;
  append(out, MetadataType::kString);
  append_string(out, value);
  set(key, out);
}

void MetadataWriter::set_numbers(std::string_view key, MetadataType type, const void* values,
                                 std::size_t count) {
  std::string out = array_head(type, count);
  set(key, out.append(static_cast<const char*>(values), count * metadata_type_bytes(type)));
}

void MetadataWriter::set_strings(std::string_view key, const std::vector<std::string>& values) {
  std::string out = array_head(MetadataType::kString, values.size());
  for (const std::string& value : values) append_string(out, value);
  set(key, out);
}

std::string MetadataWriter::bytes() const {
  std::string out;
  for (const Entry& entry : entries_) out += entry.bytes;
  return out;
}

}  // namespace specdec
