// How a quantised weight matrix [N, K] lies in device memory, host and device.
//
// Rows go in groups of 32, one per lane of a warp; K in blocks of 32 values. A group's stream is
// cut into three regions, so that every read of a warp is one run of bytes:
//   planes   [groups, K / 32, plane bytes * 32]   the integers, by bit planes
//   scales   [groups, K / 32, scale bytes * 32]   per block
//   headers  [groups, K / 256, header bytes * 32] per superblock, where the type has them
// Within each, a field of all 32 rows stands together: [field][32 rows]. Rows that do not exist
// have scales of 0.
//
// Planes of one row's block of 32 integers v:
//   nibbles  16 bytes: word i holds bits 0..3 of quad i (values 4i..4i+3) in the low halves of its
//            bytes, those of quad i + 4 in the high halves
//   bits     4 bytes: bit q of byte j is one bit of value 4q + j
//   pairs    8 bytes: bits 2(q mod 4), 2(q mod 4) + 1 of byte j of word q / 4: two bits of 4q + j
//   bytes    32 bytes: signed values
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace specdec::cuda {

inline constexpr int kGroupRows = 32;
inline constexpr int kBlockValues = 32;
inline constexpr int kSubBlocks = 8;  // blocks of 32 in a superblock

enum class Planes : std::uint8_t {
  kNibbles,
  kNibblesAndBits,   // the fifth bit
  kNibblesAndPairs,  // the fifth and sixth
  kPairs,
  kPairsAndBits,  // the third
  kBytes,
};

enum class Scales : std::uint8_t {
  kD,            // half d
  kPowerD,       // byte e: d = 2^(e - 128)
  kDAndM,        // halves d, m
  kSuper,        // header: half d; block: signed byte
  kSuperAndMin,  // header: halves d, -dmin, 4 bytes of high bits; block: a byte s | m << 4: the low
                 // bits of a scale and a minimum of 6 bits. Nibble b % 2 of header byte 4 + b / 2
                 // holds the high bits of block b of the superblock, those of m on top.
  kHalves,       // header: half d; block: two signed bytes, for values 0..15 and 16..31
  kHalvesAndMin,  // header: halves d, -dmin; block: two bytes scale | min << 4
  kOddHalves,     // header: half d; block: a byte s | t << 4 for scales 2s + 1 and 2t + 1
};

constexpr int plane_bytes(Planes planes) {
  switch (planes) {
    case Planes::kNibbles:
      return 16;
    case Planes::kNibblesAndBits:
      return 20;
    case Planes::kNibblesAndPairs:
      return 24;
    case Planes::kPairs:
      return 8;
    case Planes::kPairsAndBits:
      return 12;
    case Planes::kBytes:
      return 32;
  }
  return 0;
}

constexpr int scale_bytes(Scales scales) {
  switch (scales) {
    case Scales::kDAndM:
      return 4;
    case Scales::kPowerD:
    case Scales::kSuper:
    case Scales::kSuperAndMin:
    case Scales::kOddHalves:
      return 1;
    default:
      return 2;
  }
}

constexpr int header_bytes(Scales scales) {
  switch (scales) {
    case Scales::kD:
    case Scales::kPowerD:
    case Scales::kDAndM:
      return 0;
    case Scales::kSuperAndMin:
      return 8;
    case Scales::kHalvesAndMin:
      return 4;
    default:
      return 2;
  }
}

// The regions of one matrix, as kernels get them; of a stack, those of the first.
struct QuantizedView {
  const std::uint8_t* planes = nullptr;
  const std::uint8_t* scales = nullptr;
  const std::uint8_t* headers = nullptr;
  int rows = 0;            // N
  int blocks = 0;          // K / 32
  std::size_t stride = 0;  // bytes from a matrix of the stack to the next

  SPECDEC_HD QuantizedView matrix(int i) const {
    const std::size_t at = static_cast<std::size_t>(i) * stride;
    return {planes + at, scales + at, headers + at, rows, blocks, stride};
  }
};

// Float weights: values of one of 16 virtual lanes (k = lane mod 16) stand together, kRun of them,
// in 16 bytes: [N, runs, 16 lanes, values per lane]. K is filled up with zeros that are never used.
struct FloatView {
  const std::uint8_t* data = nullptr;
  int rows = 0;            // N, filled up to a multiple of kFloatRows in memory
  int cols = 0;            // K
  std::size_t stride = 0;  // bytes from a matrix of a stack to the next

  SPECDEC_HD FloatView matrix(int i) const {
    return {data + static_cast<std::size_t>(i) * stride, rows, cols, stride};
  }
};
inline constexpr int kVirtualLanes = 16;
inline constexpr int kFloatRows = 16;

// 8 halves or 4 floats of a lane in 16 bytes.
SPECDEC_HD constexpr int values_per_lane(std::size_t value_bytes) {
  return static_cast<int>(16 / value_bytes);
}
SPECDEC_HD constexpr int runs_of(int cols, int per_lane) {
  return (cols + kVirtualLanes * per_lane - 1) / (kVirtualLanes * per_lane);
}

// Activations [M, K] as int8 in blocks of 32: x ~ d * q. The M rows are the columns of a product;
// they go in octets, as products of matrices want them, and zeros fill up the last one.
inline constexpr int kOctet = 8;

struct alignas(8) ColumnScales {
  float d = 0.0f;
  float sum = 0.0f;  // d * float(sum of q)
};
// The same sum over each half of the block.
struct alignas(8) ColumnHalves {
  float first = 0.0f, second = 0.0f;
};
struct ActivationView {
  // [octets, K / 32, 8 columns, 32]; the quads of a block lie in the order 0 4 1 5 2 6 3 7, so that
  // a lane reads quads t and t + 4 at once.
  std::int8_t* values = nullptr;
  ColumnScales* scales = nullptr;  // [octets, K / 32, 8]
  ColumnHalves* halves = nullptr;  // [octets, K / 32, 8]
  int blocks = 0;                  // K / 32

  // Where a block of a column lies, in blocks.
  SPECDEC_HD std::size_t place(int column, int block) const {
    return (static_cast<std::size_t>(column / kOctet) * blocks + block) * kOctet + column % kOctet;
  }
};
// Bytes of one block of an octet.
inline constexpr int kOctetValueBytes = kOctet * kBlockValues;
inline constexpr int kOctetScaleBytes = kOctet * static_cast<int>(sizeof(ColumnScales));

SPECDEC_HD constexpr int octets_of(int columns) { return (columns + kOctet - 1) / kOctet; }
// Where quad q of a block lies.
SPECDEC_HD constexpr int quad_place(int q) { return q < 4 ? 2 * q : 2 * (q - 4) + 1; }

// --- The columns of a launch of products, as they lie in activations ---

// Columns [first, end) are multiplied by `matrix` of a stack; first is a multiple of kOctet, so
// that they begin an octet.
struct MatrixColumns {
  int matrix = 0, first = 0, end = 0;
};
// What a column of a mixture holds: row `row` of the pass for `expert`; -1: it fills up an octet.
struct ExpertColumn {
  int row = -1, expert = -1;
};

// Either column i is row i of the pass, for the only matrix of a weight; or the pass's rows are
// shared out to the matrices of stacks, as the device alone knows. Sizes are those of the largest
// case then, so that a launch does not depend on what the rows chose.
struct Columns {
  int count = 0;  // in memory
  int most = 0;   // of one matrix
  int parts = 1;
  const MatrixColumns* matrices = nullptr;  // [parts], those without columns last; null: one part
  const ExpertColumn* sources = nullptr;    // [count], or null: column i is row i

  // What a matrix can be expected to have: for the choice of a tile.
  int likely() const {
    const int mean = (count + parts - 1) / parts;
    return mean < most ? mean : most;
  }
  // The same columns for what lies in their order already.
  Columns in_place() const { return {count, most, parts, matrices, nullptr}; }
};
inline Columns columns_of(int rows) { return {rows, rows}; }

SPECDEC_HD inline MatrixColumns part_of(const Columns& columns, int part) {
  return columns.matrices == nullptr ? MatrixColumns{0, 0, columns.count} : columns.matrices[part];
}
// The row of x that a column takes, -1: none.
SPECDEC_HD inline int source_row(const Columns& columns, int column) {
  if (columns.sources != nullptr) return columns.sources[column].row;
  return column < columns.count ? column : -1;
}

}  // namespace specdec::cuda
