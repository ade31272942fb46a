// A read position in a mapped GGUF file. Every read is checked against the bytes that are left, and
// an error names the file, the field and the byte offset. Nothing here can overflow: lengths are
// compared with what is left, never added to the position first.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/printable.h"

namespace specdec::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF values are read in place");

inline constexpr std::string_view kDamaged = "the file is truncated or damaged: download it again";

// Reads one little-endian value at any alignment.
template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// What is being read, for messages: "value of metadata key 'x'". Views only, so that naming a field
// costs nothing on the good path.
struct Field {
  std::string_view what;
  std::string_view owner = {};
};

class Cursor {
 public:
  // `path` must outlive the cursor; it is used for messages only.
  Cursor(const std::byte* data, std::size_t size, const std::string& path)
      : data_(data), size_(size), path_(path) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return size_ - position_; }
  const std::byte* here() const { return data_ + position_; }
  const std::byte* begin() const { return data_; }

  template <typename T>
  T read(const Field& field) {
    require(sizeof(T), field);
    const T value = load<T>(here());
    position_ += sizeof(T);
    return value;
  }

  // A length-prefixed string as a view into the file.
  std::string_view read_string(const Field& field) {
    const std::size_t start = position_;
    const auto length = read<std::uint64_t>(field);
    if (length > left()) {
      fail(start, field,
           str("its length is ", length, ", but only ", left(), " bytes are left; ", kDamaged));
    }
    const std::string_view text(reinterpret_cast<const char*>(here()),
                                static_cast<std::size_t>(length));
    position_ += text.size();
    return text;
  }

  // `count` elements of at least `element_bytes` each are about to follow.
  void require_count(std::uint64_t count, std::size_t element_bytes, std::size_t offset,
                     const Field& field) const {
    if (count > left() / element_bytes) {
      fail(offset, field,
           str("it is ", count, ", but the ", left(), " bytes left hold at most ",
               left() / element_bytes, "; ", kDamaged));
    }
  }

  void skip(std::size_t bytes, const Field& field) {
    require(bytes, field);
    position_ += bytes;
  }

  [[noreturn]] void fail(std::size_t offset, const Field& field, const std::string& reason) const {
    throw GgufError(str(printable(path_), ": byte ", offset, ": ", field.what,
                        field.owner.empty() ? "" : " ",
                        field.owner.empty() ? std::string() : quoted(field.owner), ": ", reason));
  }

 private:
  void require(std::size_t bytes, const Field& field) const {
    if (bytes > left()) {
      fail(position_, field,
           str("it needs ", bytes, " bytes, but only ", left(), " are left; ", kDamaged));
    }
  }

  const std::byte* data_;
  std::size_t size_;
  std::size_t position_ = 0;
  const std::string& path_;
};

}  // namespace specdec::gguf
