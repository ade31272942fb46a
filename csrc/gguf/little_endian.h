// Values appended to a string of bytes as a GGUF file holds them.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace specdec::gguf {

static_assert(std::endian::native == std::endian::little, "GGUF values are written as they are");

template <typename T>
void append(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void append_string(std::string& out, std::string_view text) {
  append<std::uint64_t>(out, text.size());
  out += text;
}

}  // namespace specdec::gguf
