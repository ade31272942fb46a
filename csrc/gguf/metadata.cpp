#include "gguf/metadata.h"

#include <cmath>
#include <iterator>

#include "core/error.h"
#include "core/printable.h"
#include "gguf/cursor.h"

namespace specdec {
namespace {

using gguf::Cursor;
using gguf::Field;
using gguf::load;

// The format allows no longer keys; a longer one means that we are reading something else.
constexpr std::size_t kMaxKeyBytes = 65535;

// An integer of any of the eight types.
struct WideInt {
  bool negative;
  std::uint64_t bits;  // two's complement

  bool fits_unsigned(std::uint64_t max) const { return !negative && bits <= max; }
  bool fits_signed(std::int64_t min, std::int64_t max) const {
    if (!negative && bits > static_cast<std::uint64_t>(Metadata::kMaxInt)) return false;
    const auto value = static_cast<std::int64_t>(bits);
    return value >= min && value <= max;
  }
};

template <typename T>
WideInt load_int(const std::byte* data) {
  const T value = load<T>(data);
  return {value < 0, static_cast<std::uint64_t>(value)};
}

template <typename T>
WideInt load_uint(const std::byte* data) {
  return {false, load<T>(data)};
}

std::optional<WideInt> read_integer(const MetadataValue& value, std::size_t index) {
  const std::byte* data = value.data + index * metadata_type_bytes(value.type);
  switch (value.type) {
    case MetadataType::kU8:
      return load_uint<std::uint8_t>(data);
    case MetadataType::kI8:
      return load_int<std::int8_t>(data);
    case MetadataType::kU16:
      return load_uint<std::uint16_t>(data);
    case MetadataType::kI16:
      return load_int<std::int16_t>(data);
    case MetadataType::kU32:
      return load_uint<std::uint32_t>(data);
    case MetadataType::kI32:
      return load_int<std::int32_t>(data);
    case MetadataType::kU64:
      return load_uint<std::uint64_t>(data);
    case MetadataType::kI64:
      return load_int<std::int64_t>(data);
    default:
      return std::nullopt;
  }
}

std::optional<double> read_number(const MetadataValue& value, std::size_t index) {
  const std::byte* data = value.data + index * metadata_type_bytes(value.type);
  if (value.type == MetadataType::kF32) return load<float>(data);
  if (value.type == MetadataType::kF64) return load<double>(data);
  const std::optional<WideInt> integer = read_integer(value, index);
  if (!integer) return std::nullopt;
  return integer->negative ? static_cast<double>(static_cast<std::int64_t>(integer->bits))
                           : static_cast<double>(integer->bits);
}

// Text of element `index` for a message.
std::string element_text(const MetadataValue& value, std::size_t index) {
  if (value.type == MetadataType::kString) return "";
  if (value.type == MetadataType::kBool) {
    return str(static_cast<unsigned>(load<std::uint8_t>(value.data + index)));
  }
  const std::optional<WideInt> integer = read_integer(value, index);
  if (!integer) return str(*read_number(value, index));
  return integer->negative ? str(static_cast<std::int64_t>(integer->bits)) : str(integer->bits);
}

MetadataType checked_type(const Cursor& cursor, std::size_t offset, std::uint32_t number,
                          const Field& field) {
  if (number > static_cast<std::uint32_t>(MetadataType::kF64)) {
    cursor.fail(offset, field,
                str("unknown type ", number, " (this library knows 0 to 12); ", gguf::kDamaged));
  }
  return static_cast<MetadataType>(number);
}

// Moves past the elements of `value`, which start at the cursor.
void skip_elements(Cursor& cursor, const MetadataValue& value) {
  const std::size_t element_bytes = metadata_type_bytes(value.type);
  if (element_bytes != 0) {
    // For arrays the product was checked with the count.
    cursor.skip(value.count * element_bytes, {"value of metadata key", value.key});
    return;
  }
  for (std::size_t i = 0; i < value.count; ++i) {
    cursor.read_string({"string value of metadata key", value.key});
  }
}

MetadataValue read_value(Cursor& cursor, std::string_view key) {
  const std::size_t type_offset = cursor.position();
  const Field type_field = {"type of metadata key", key};
  MetadataType type =
      checked_type(cursor, type_offset, cursor.read<std::uint32_t>(type_field), type_field);
  if (type != MetadataType::kArray) {
    MetadataValue value = {key, type, false, 1, cursor.here(), cursor.position()};
    skip_elements(cursor, value);
    return value;
  }
  const std::size_t element_offset = cursor.position();
  const Field element_field = {"element type of metadata key", key};
  type = checked_type(cursor, element_offset, cursor.read<std::uint32_t>(element_field),
                      element_field);
  if (type == MetadataType::kArray) {
    cursor.fail(element_offset, element_field,
                "arrays of arrays are not supported: no known model uses them");
  }
  const std::size_t count_offset = cursor.position();
  const auto count = cursor.read<std::uint64_t>({"element count of metadata key", key});
  // Every string has at least its length.
  const std::size_t least =
      type == MetadataType::kString ? sizeof(std::uint64_t) : metadata_type_bytes(type);
  cursor.require_count(count, least, count_offset, {"element count of metadata key", key});
  MetadataValue value = {
      key, type, true, static_cast<std::size_t>(count), cursor.here(), cursor.position()};
  skip_elements(cursor, value);
  return value;
}

}  // namespace

std::string_view metadata_type_name(MetadataType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<std::size_t>(type);
  SPECDEC_CHECK(number < std::size(kNames), "metadata type ", number);
  return kNames[number];
}

std::size_t metadata_type_bytes(MetadataType type) {
  switch (type) {
    case MetadataType::kU8:
    case MetadataType::kI8:
    case MetadataType::kBool:
      return 1;
    case MetadataType::kU16:
    case MetadataType::kI16:
      return 2;
    case MetadataType::kU32:
    case MetadataType::kI32:
    case MetadataType::kF32:
      return 4;
    case MetadataType::kU64:
    case MetadataType::kI64:
    case MetadataType::kF64:
      return 8;
    default:
      return 0;
  }
}

std::vector<std::string_view> MetadataValue::strings() const {
  std::vector<std::string_view> result;
  if (type != MetadataType::kString) return result;
  result.reserve(count);
  const std::byte* next = data;
  for (std::size_t i = 0; i < count; ++i) {
    const auto length = static_cast<std::size_t>(load<std::uint64_t>(next));
    next += sizeof(std::uint64_t);
    result.emplace_back(reinterpret_cast<const char*>(next), length);
    next += length;
  }
  return result;
}

std::optional<double> MetadataValue::number(std::size_t index) const {
  if (type == MetadataType::kBool) return load<std::uint8_t>(data + index) != 0 ? 1.0 : 0.0;
  return read_number(*this, index);
}

std::string MetadataValue::describe() const {
  const std::string_view name = metadata_type_name(type);
  if (is_array) return str("array of ", count, " ", name);
  if (type == MetadataType::kString) return str(name, " ", quoted(strings()[0]));
  return str(name, " ", element_text(*this, 0));
}

void Metadata::parse(Cursor& cursor, std::uint64_t count, const std::string& path) {
  path_ = path;
  // No reserve: memory grows with entries that are really there.
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::size_t offset = cursor.position();
    const std::string_view key = cursor.read_string({"key of a metadata entry"});
    const Field field = {"metadata key", key};
    if (key.empty() || key.size() > kMaxKeyBytes) {
      cursor.fail(offset, field,
                  str("a key has 1 to ", kMaxKeyBytes, " bytes, this one has ", key.size(), "; ",
                      gguf::kDamaged));
    }
    if (!index_.emplace(key, values_.size()).second) {
      cursor.fail(offset, field, "it appears twice: the file is damaged or was edited wrongly");
    }
    values_.push_back(read_value(cursor, key));
  }
}

const MetadataValue* Metadata::find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &values_[found->second];
}

const MetadataValue& Metadata::require(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) {
    throw GgufError(str(printable(path_), ": metadata key ", quoted(key),
                        " is missing: the file is incomplete or not a model of a supported kind"));
  }
  return *value;
}

void Metadata::mismatch(const MetadataValue& value, const std::string& expected) const {
  throw GgufError(str(printable(path_), ": byte ", value.offset, ": metadata key ",
                      quoted(value.key), " is ", value.describe(), ", but ", expected,
                      " is expected; convert the model again or get another copy of it"));
}

const MetadataValue* Metadata::scalar(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value != nullptr && value->is_array) mismatch(*value, "a single value");
  return value;
}

const MetadataValue* Metadata::array(std::string_view key) const {
  const MetadataValue* value = find(key);
  if (value != nullptr && !value->is_array) mismatch(*value, "an array");
  return value;
}

std::uint64_t Metadata::to_uint(const MetadataValue& value, std::size_t index,
                                std::uint64_t max) const {
  const std::optional<WideInt> integer = read_integer(value, index);
  if (!integer || !integer->fits_unsigned(max)) {
    const std::string range = str("an integer from 0 to ", max);
    if (!value.is_array || !integer) mismatch(value, range);
    mismatch(value, str("at index ", index, " (found ", element_text(value, index), ") ", range));
  }
  return integer->bits;
}

std::int64_t Metadata::to_int(const MetadataValue& value, std::size_t index, std::int64_t min,
                              std::int64_t max) const {
  const std::optional<WideInt> integer = read_integer(value, index);
  if (!integer || !integer->fits_signed(min, max)) {
    const std::string range = str("an integer from ", min, " to ", max);
    if (!value.is_array || !integer) mismatch(value, range);
    mismatch(value, str("at index ", index, " (found ", element_text(value, index), ") ", range));
  }
  return static_cast<std::int64_t>(integer->bits);
}

double Metadata::to_float(const MetadataValue& value, std::size_t index) const {
  const std::optional<double> number = read_number(value, index);
  if (!number) mismatch(value, "a number");
  return *number;
}

std::uint64_t Metadata::get_uint(std::string_view key, std::uint64_t max) const {
  require(key);
  return *find_uint(key, max);
}

std::optional<std::uint64_t> Metadata::find_uint(std::string_view key, std::uint64_t max) const {
  const MetadataValue* value = scalar(key);
  if (value == nullptr) return std::nullopt;
  return to_uint(*value, 0, max);
}

std::optional<std::int64_t> Metadata::find_int(std::string_view key, std::int64_t min,
                                               std::int64_t max) const {
  const MetadataValue* value = scalar(key);
  if (value == nullptr) return std::nullopt;
  return to_int(*value, 0, min, max);
}

double Metadata::get_float(std::string_view key) const {
  require(key);
  return *find_float(key);
}

std::optional<double> Metadata::find_float(std::string_view key) const {
  const MetadataValue* value = scalar(key);
  if (value == nullptr) return std::nullopt;
  const double number = to_float(*value, 0);
  if (!std::isfinite(number)) mismatch(*value, "a finite number");
  return number;
}

bool Metadata::get_bool(std::string_view key) const {
  require(key);
  return *find_bool(key);
}

std::optional<bool> Metadata::find_bool(std::string_view key) const {
  const MetadataValue* value = scalar(key);
  if (value == nullptr) return std::nullopt;
  if (value->type == MetadataType::kBool) {
    const auto byte = load<std::uint8_t>(value->data);
    if (byte <= 1) return byte == 1;
  } else if (const std::optional<WideInt> integer = read_integer(*value, 0)) {
    if (integer->fits_unsigned(1)) return integer->bits == 1;
  }
  mismatch(*value, "a bool");
}

std::string_view Metadata::get_string(std::string_view key) const {
  require(key);
  return *find_string(key);
}

std::optional<std::string_view> Metadata::find_string(std::string_view key) const {
  const MetadataValue* value = scalar(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != MetadataType::kString) mismatch(*value, "a string");
  return value->strings()[0];
}

std::vector<std::uint64_t> Metadata::get_uint_or_array(std::string_view key, std::size_t count,
                                                       std::uint64_t max) const {
  require(key);
  return *find_uint_or_array(key, count, max);
}

std::optional<std::vector<std::uint64_t>> Metadata::find_uint_or_array(std::string_view key,
                                                                       std::size_t count,
                                                                       std::uint64_t max) const {
  const MetadataValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array) return std::vector<std::uint64_t>(count, to_uint(*value, 0, max));
  if (value->count != count) mismatch(*value, str("one integer or an array of ", count));
  std::vector<std::uint64_t> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = to_uint(*value, i, max);
  return result;
}

std::optional<std::vector<std::int64_t>> Metadata::find_int_array(std::string_view key,
                                                                  std::int64_t min,
                                                                  std::int64_t max) const {
  const MetadataValue* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> result(value->count);
  for (std::size_t i = 0; i < value->count; ++i) result[i] = to_int(*value, i, min, max);
  return result;
}

std::optional<std::vector<float>> Metadata::find_float_array(std::string_view key) const {
  const MetadataValue* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<float> result(value->count);
  for (std::size_t i = 0; i < value->count; ++i) {
    result[i] = static_cast<float>(to_float(*value, i));
  }
  return result;
}

std::optional<std::vector<bool>> Metadata::find_bool_array(std::string_view key) const {
  const MetadataValue* value = array(key);
  if (value == nullptr) return std::nullopt;
  std::vector<bool> result(value->count);
  for (std::size_t i = 0; i < value->count; ++i) {
    if (value->type == MetadataType::kBool) {
      const auto byte = load<std::uint8_t>(value->data + i);
      if (byte > 1) mismatch(*value, "an array of bools");
      result[i] = byte == 1;
    } else {
      result[i] = to_uint(*value, i, 1) == 1;
    }
  }
  return result;
}

std::vector<std::string_view> Metadata::get_string_array(std::string_view key) const {
  require(key);
  return *find_string_array(key);
}

std::optional<std::vector<std::string_view>> Metadata::find_string_array(
    std::string_view key) const {
  const MetadataValue* value = array(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != MetadataType::kString) mismatch(*value, "an array of strings");
  return value->strings();
}

}  // namespace specdec
