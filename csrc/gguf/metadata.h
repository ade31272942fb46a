// The metadata of a GGUF file: typed, range-checked access for the code that configures a model.
// Values stay in the mapped file; nothing is copied until it is asked for, so a vocabulary of 262k
// tokens costs one walk over its length prefixes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace specdec {

namespace gguf {
class Cursor;
}

// The numeric values are those of the file format.
enum class MetadataType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// "u32", "string", ...
std::string_view metadata_type_name(MetadataType type);

// One value as it lies in the file, already checked to lie inside it.
struct MetadataValue {
  std::string_view key;
  MetadataType type;  // of the value, or of the elements of an array; never kArray
  bool is_array;
  std::size_t count;      // elements; 1 for a scalar
  const std::byte* data;  // numbers: little endian, any alignment; strings: u64 length + bytes
  std::size_t offset;     // of the value in the file, for messages

  // Strings in order, as views into the file. Empty unless `type` is kString.
  std::vector<std::string_view> strings() const;
  // Element `index` as a number, a truth value as 0 or 1; nullopt for strings.
  std::optional<double> number(std::size_t index) const;
  // For messages: "u32 7", "string 'abc'", "array of 3 i32".
  std::string describe() const;
};

// Bytes of one element of a fixed-size type; 0 for strings.
std::size_t metadata_type_bytes(MetadataType type);

// get_*: the key must be there. find_*: nullopt where it is missing. Both throw GgufError, naming
// the key, the type and the value found, where the value does not fit. Strings are bytes: UTF-8 is
// usual but nothing promises it, and tokens must compare exactly.
class Metadata {
 public:
  static constexpr std::uint64_t kMaxUint = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::int64_t kMinInt = std::numeric_limits<std::int64_t>::min();
  static constexpr std::int64_t kMaxInt = std::numeric_limits<std::int64_t>::max();

  // In file order; keys are unique.
  const std::vector<MetadataValue>& values() const { return values_; }
  const MetadataValue* find(std::string_view key) const;

  // Any integer width, signed or not.
  std::uint64_t get_uint(std::string_view key, std::uint64_t max = kMaxUint) const;
  std::optional<std::uint64_t> find_uint(std::string_view key, std::uint64_t max = kMaxUint) const;
  std::optional<std::int64_t> find_int(std::string_view key, std::int64_t min = kMinInt,
                                       std::int64_t max = kMaxInt) const;
  // f32, f64 and integers; must be finite.
  double get_float(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  // bool, and the integers 0 and 1.
  bool get_bool(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;

  // One value per layer: an array of exactly `count` integers, or a scalar for all.
  std::vector<std::uint64_t> get_uint_or_array(std::string_view key, std::size_t count,
                                               std::uint64_t max = kMaxUint) const;
  std::optional<std::vector<std::uint64_t>> find_uint_or_array(std::string_view key,
                                                               std::size_t count,
                                                               std::uint64_t max = kMaxUint) const;

  // Arrays of any length, elements of any integer width, of any number type, of strings.
  std::optional<std::vector<std::int64_t>> find_int_array(std::string_view key,
                                                          std::int64_t min = kMinInt,
                                                          std::int64_t max = kMaxInt) const;
  std::optional<std::vector<float>> find_float_array(std::string_view key) const;
  // bools, and the integers 0 and 1.
  std::optional<std::vector<bool>> find_bool_array(std::string_view key) const;
  std::vector<std::string_view> get_string_array(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_string_array(std::string_view key) const;

 private:
  friend class GgufShard;

  // Reads `count` entries; called once, by GgufShard.
  void parse(gguf::Cursor& cursor, std::uint64_t count, const std::string& path);

  const MetadataValue& require(std::string_view key) const;
  const MetadataValue* scalar(std::string_view key) const;
  const MetadataValue* array(std::string_view key) const;
  std::uint64_t to_uint(const MetadataValue& value, std::size_t index, std::uint64_t max) const;
  std::int64_t to_int(const MetadataValue& value, std::size_t index, std::int64_t min,
                      std::int64_t max) const;
  double to_float(const MetadataValue& value, std::size_t index) const;
  [[noreturn]] void mismatch(const MetadataValue& value, const std::string& expected) const;

  std::string path_;
  std::vector<MetadataValue> values_;
  std::unordered_map<std::string_view, std::size_t> index_;  // keys are views into the file
};

}  // namespace specdec
