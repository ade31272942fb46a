// The contiguous key/value cache of one sequence, one part for each span of layers, in the memory
// of the span's backend. Positions [0, length) are valid; a pass appends rows, rollback truncates
// them, keep_rows gathers an accepted path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "model/placement.h"

namespace specdec {

class KvCache {
 public:
  // capacity: positions. dtype: kF32, kF16, or kQ8_0 where head_dim is a
  // multiple of 32.
  KvCache(std::span<const LayerSpan> spans, DType dtype, std::int32_t kv_heads,
          std::int32_t head_dim, std::int32_t capacity);

  std::int32_t length() const { return length_; }
  std::int32_t capacity() const { return capacity_; }
  std::size_t bytes() const;
  std::size_t bytes(std::size_t part) const;
  std::size_t parts() const { return parts_.size(); }
  // Of the layers of a span, numbered from 0.
  const KvCacheView& view(std::size_t part) const { return parts_[part].view; }

  // A pass has written `rows` rows at [length, length + rows).
  void append(std::int32_t rows);

  // Rollback: forgets everything from `length` on. Must not exceed the current length.
  void truncate(std::int32_t length);

  // Keeps, of the rows from `base` on, only base + rows[i] (ascending), moved together in place:
  // the length becomes base + rows.size(). Positions are base + depth, so nothing else changes.
  // workspaces [parts]: those of the passes that wrote the rows.
  void keep_path(std::span<Workspace* const> workspaces, std::int32_t base,
                 std::span<const std::int32_t> rows);

 private:
  struct Part {
    std::shared_ptr<const Backend> backend;
    std::unique_ptr<Buffer> keys, values;  // each [layers of the span, Hkv, capacity, D]
    KvCacheView view;
  };

  std::vector<Part> parts_;
  std::int32_t capacity_;
  std::int32_t length_ = 0;
};

}  // namespace specdec
