#include "core/printable.h"

#include <cstdint>

namespace specdec {
namespace {

// Length of the well-formed UTF-8 sequence at the start of `s` (Unicode table 3-7), 0 if there is
// none.
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(s[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  std::uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  std::size_t length = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  if (length == 0 || s.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string printable(std::string_view bytes, std::size_t max_bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  std::size_t i = 0;
  while (i < bytes.size()) {
    const std::size_t length = utf8_length(bytes.substr(i));
    if (i + (length == 0 ? 1 : length) > max_bytes) return out + "...";
    const auto c = static_cast<std::uint8_t>(bytes[i]);
    // U+0080..U+009F are control characters too (C2 80..C2 9F).
    const bool control =
        c < 0x20 || c == 0x7F ||
        (length == 2 && c == 0xC2 && static_cast<std::uint8_t>(bytes[i + 1]) < 0xA0);
    if (length == 0 || control) {
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
      i += 1;
    } else {
      out.append(bytes.substr(i, length));
      i += length;
    }
  }
  return out;
}

std::string quoted(std::string_view bytes, std::size_t max_bytes) {
  std::string out = "'";  // not one sum: g++ 12 warns of an overlap that is none
  out += printable(bytes, max_bytes);
  out += '\'';
  return out;
}

}  // namespace specdec
