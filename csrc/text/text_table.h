// Hash tables for vocabularies: text -> token id, and pair of ids -> what they merge into. Open
// addressing in one array each, as a quarter of a million entries must be in place in milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace specdec {

using TokenId = std::int32_t;
inline constexpr TokenId kNoToken = -1;

// A power of two of which `entries` take at most half.
inline std::size_t table_size(std::size_t entries) {
  std::size_t size = 16;
  while (size < 2 * entries) size *= 2;
  return size;
}

// Text -> id. The texts must outlive the table.
class TextTable {
 public:
  explicit TextTable(std::size_t entries) : slots_(table_size(entries)) {}

  // Keeps what is there if the text is known already.
  void insert(std::string_view text, TokenId id) {
    Slot& slot = slots_[position(text)];
    if (slot.id == kNoToken) slot = {text, id};
  }

  // The id, or kNoToken.
  TokenId find(std::string_view text) const { return slots_[position(text)].id; }

 private:
  struct Slot {
    std::string_view text;
    TokenId id = kNoToken;
  };

  std::size_t position(std::string_view text) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = std::hash<std::string_view>{}(text)&mask;
    while (slots_[at].id != kNoToken && slots_[at].text != text) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
};

// What a pair of neighbours becomes, and how early.
struct Merge {
  std::uint32_t rank;  // the lower the earlier
  TokenId result;
};

// Pair of ids -> merge.
class PairTable {
 public:
  explicit PairTable(std::size_t entries) : slots_(table_size(entries)) {}

  // Replaces what is there.
  void insert(TokenId left, TokenId right, Merge merge) {
    Slot& slot = slots_[position(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }

  // The merge, or nullptr.
  const Merge* find(TokenId left, TokenId right) const {
    const Slot& slot = slots_[position(key_of(left, right))];
    return slot.key == kEmpty ? nullptr : &slot.merge;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge = {0, kNoToken};
  };

  static std::uint64_t key_of(TokenId left, TokenId right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }

  std::size_t position(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    // The finaliser of MurmurHash3 (public domain): every bit of the key reaches every bit.
    std::uint64_t mixed = key;
    mixed = (mixed ^ mixed >> 33) * 0xff51afd7ed558ccdULL;
    mixed = (mixed ^ mixed >> 33) * 0xc4ceb9fe1a85ec53ULL;
    std::size_t at = static_cast<std::size_t>(mixed ^ mixed >> 33) & mask;
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
};

}  // namespace specdec
