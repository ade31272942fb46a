// The contiguous key/value cache of one sequence, in the memory of the model's backend. Positions
// [0, length) are valid; a pass appends rows, rollback truncates them, keep_rows gathers an
// accepted path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"

namespace specdec {

class KvCache {
 public:
  // capacity: positions. dtype: kF32, kF16, or kQ8_0 where head_dim is a
  // multiple of 32.
  KvCache(const Backend& backend, DType dtype, std::int32_t layers, std::int32_t kv_heads,
          std::int32_t head_dim, std::int32_t capacity);

  std::int32_t length() const { return length_; }
  std::int32_t capacity() const { return view_.capacity; }
  std::size_t bytes() const { return keys_->bytes() + values_->bytes(); }
  const KvCacheView& view() const { return view_; }

  // A pass has written `rows` rows at [length, length + rows).
  void append(std::int32_t rows);

  // Rollback: forgets everything from `length` on. Must not exceed the current length.
  void truncate(std::int32_t length);

  // Keeps, of the rows from `base` on, only base + rows[i] (ascending), moved together in place:
  // the length becomes base + rows.size(). Positions are base + depth, so nothing else changes.
  void keep_path(const Backend& backend, Workspace& workspace, std::int32_t base,
                 std::span<const std::int32_t> rows);

 private:
  std::unique_ptr<Buffer> keys_, values_;  // each [L, Hkv, capacity, D]
  KvCacheView view_;
  std::int32_t length_ = 0;
};

}  // namespace specdec
