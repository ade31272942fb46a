// A weight matrix as the CPU kernels read it. Quantised types are repacked once at load into groups
// of 32 rows whose bytes are interleaved so that a vector holds 4 consecutive values of K of every
// row; float types stay where they are, row-major in the mapped file.
//
// A packed group (32 rows) is one stream of bytes in the order in which a kernel reads it: for
// every superblock a header, then for every block of 32 values its scales and its bit planes; all
// parts are multiples of 64 bytes. What they hold: kernels_matmul.inl. Rows that do not exist have
// scale 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/kernel_table.h"
#include "core/aligned_memory.h"
#include "core/thread_pool.h"

namespace specdec {

// Geometry of a packed format.
struct PackedLayout {
  PackedFormat format;
  std::size_t super_blocks;  // blocks of 32 in a block of the file: 1, or 8
  std::size_t header_bytes;  // per superblock
  std::size_t scale_bytes;   // per block
  std::size_t plane_bytes;   // per block and 16 rows
  ActKind act;

  std::size_t block_bytes() const { return scale_bytes + 2 * plane_bytes; }
};

// The layout of a quantised type, or null for the float types.
const PackedLayout* packed_layout(DType dtype);

class CpuWeight final : public Weight {
 public:
  // Repacks `source` [N, K], or a stack [X, N, K], into memory of `arena` with the pool's threads,
  // unless it is only looked up. The mapping must outlive the weight; what has been repacked is
  // given back page by page, so that file and packed form are never in memory together.
  CpuWeight(const TensorView& source, WeightUse use, Arena& arena, ThreadPool& pool);

  DType dtype() const override { return dtype_; }
  std::size_t matrices() const override { return matrices_; }
  std::size_t rows() const override { return rows_; }
  std::size_t cols() const override { return cols_; }
  std::size_t bytes() const override { return packed_ ? matrices_ * groups() * group_bytes_ : 0; }

  const PackedLayout* layout() const { return layout_; }  // null: read from the file
  std::size_t blocks() const { return cols_ / kActBlockSize; }
  std::size_t groups() const { return (rows_ + kGroupRows - 1) / kGroupRows; }  // of one matrix
  const std::uint8_t* group(std::size_t index, std::size_t matrix = 0) const {
    return packed_.get() + (matrix * groups() + index) * group_bytes_;
  }
  std::size_t group_bytes() const { return group_bytes_; }
  // Row n of the whole stack as it lies in the file.
  const std::byte* source_row(std::size_t n) const { return source_ + n * row_bytes_; }
  std::size_t source_row_bytes() const { return row_bytes_; }

 private:
  void pack_group(std::size_t group, std::size_t matrix);

  DType dtype_;
  std::size_t matrices_, rows_, cols_, row_bytes_;
  const std::byte* source_;  // [X, N, row_bytes]
  const PackedLayout* layout_;
  std::size_t group_bytes_ = 0;
  std::shared_ptr<std::uint8_t[]> packed_;  // [X, groups, group_bytes]
};

inline const CpuWeight& as_cpu(const Weight& weight) {
  return static_cast<const CpuWeight&>(weight);
}

}  // namespace specdec
