// Products with F32, F16 and BF16 weights: 16 virtual lanes over K, lane j taking k = j mod 16 in
// order by fused multiply-adds, then the fixed tree (sum_16_lanes). A half warp carries some weight
// rows and columns; the layout (FloatView) gives each lane the values of its chain in reads of 16
// bytes. The instruction sequence of an output is the same at every width, and in every tile.
#include "backend/cuda/kernels/product_part.cuh"
#include "core/error.h"
#include "core/half.h"

namespace specdec::cuda {
namespace {

// What a half warp carries, and how its thread block's half warps stand: by rows, then by columns.
template <int kRowsOf, int kColumnsOf, int kRowHalvesOf, int kColumnHalvesOf>
struct FloatTile {
  static constexpr int kRows = kRowsOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kRowHalves = kRowHalvesOf;
  static constexpr int kColumnHalves = kColumnHalvesOf;
  static constexpr int kBlockRows = kRows * kRowHalves;
  static constexpr int kBlockColumns = kColumns * kColumnHalves;
  static constexpr int kThreads = kRowHalves * kColumnHalves * kVirtualLanes;
  static constexpr int kAhead = kRows == 1 ? 4 : 1;  // runs of weights read at once
  static constexpr int kBlocksPerSm = kRows == 1 ? 2 : 1;
};
// A verify pass: as many reads of weights under way as can be.
template <int kColumns>
using NarrowTile = FloatTile<1, kColumns, 16, 1>;
// Prefill: a value of x serves three rows, and weights are read once per 64 columns. Four rows need
// more registers than 512 threads have.
using WideTile = FloatTile<3, 16, 8, 4>;

// Weights of a lane: 16 bytes, as four floats at a time.
inline constexpr int kPiece = 4;
struct WeightF32 {
  static constexpr int kPerLane = values_per_lane(4);
  __device__ __forceinline__ static void unpack(const unsigned* words, float (&out)[kPiece]) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) out[i] = bits_to_float(words[i]);
  }
};
struct WeightF16 {
  static constexpr int kPerLane = values_per_lane(2);
  __device__ __forceinline__ static void unpack(const unsigned* words, float (&out)[kPiece]) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      out[i] = half_value(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
};
struct WeightBF16 {
  static constexpr int kPerLane = values_per_lane(2);
  __device__ __forceinline__ static void unpack(const unsigned* words, float (&out)[kPiece]) {
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      out[i] = bf16_to_float(static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2))));
    }
  }
};

// The terms of one run, of which the first `count` values exist, for all rows and columns of the
// tile. raw: weights of each row; x: of this lane and run, in the tile's first column
template <class W, class T>
__device__ __forceinline__ void add_run(const uint4 (&raw)[T::kRows], const float* x,
                                        std::size_t column_stride, int columns, int count,
                                        float (&acc)[T::kRows][T::kColumns]) {
#pragma unroll
  for (int piece = 0; piece < W::kPerLane; piece += kPiece) {
    float weights[T::kRows][kPiece];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) {
      const unsigned words[4] = {raw[r].x, raw[r].y, raw[r].z, raw[r].w};
      W::unpack(words + piece * 4 / W::kPerLane, weights[r]);
    }
#pragma unroll
    for (int c = 0; c < T::kColumns; ++c) {
      if (c >= columns) break;
      const auto four = *reinterpret_cast<const float4*>(x + c * column_stride + piece);
      const float column[kPiece] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (piece + i < count) {
#pragma unroll
          for (int r = 0; r < T::kRows; ++r) acc[r][c] = fmaf(weights[r][i], column[i], acc[r][c]);
        }
      }
    }
  }
}

// Where the half warp of this lane works, and its lane.
struct HalfWarp {
  int lane, first_row, first_column;
};
template <class T>
__device__ __forceinline__ HalfWarp place_of_half_warp(int row_block, int first_column) {
  const int half = static_cast<int>(threadIdx.x) / kVirtualLanes;
  return {static_cast<int>(threadIdx.x) % kVirtualLanes,
          row_block * T::kBlockRows + half % T::kRowHalves * T::kRows,
          first_column + half / T::kRowHalves * T::kColumns};
}

// grid: (tiles of a matrix's columns, blocks of rows of all products, parts of the columns). x:
// arranged; out [columns, N]
template <class W, class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksPerSm)
    multiply_float(FloatProducts products, const float* x, Columns all) {
  const MatrixColumns mine = part_of(all, static_cast<int>(blockIdx.z));
  const int first_column = mine.first + static_cast<int>(blockIdx.x) * T::kBlockColumns;
  if (first_column >= mine.end) return;  // the whole block
  const auto part = find_part(products, mine.matrix, static_cast<int>(blockIdx.y), T::kBlockRows);
  const FloatView& w = part.weight;
  const HalfWarp at = place_of_half_warp<T>(part.block, first_column);
  const int runs = runs_of(w.cols, W::kPerLane);
  const int steps = (w.cols + kVirtualLanes - 1) / kVirtualLanes, full = steps / W::kPerLane;
  constexpr int kRunValues = kVirtualLanes * W::kPerLane;
  const auto* weights = reinterpret_cast<const uint4*>(w.data) + at.lane;
  unsigned rows[T::kRows];  // where they start; 32 bits count 64 GiB in reads of 16 bytes
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
    // Rows that do not exist read one that does.
    const int last = (w.rows + kFloatRows - 1) / kFloatRows * kFloatRows - 1;
    const int row = at.first_row + r < last ? at.first_row + r : last;
    rows[r] = static_cast<unsigned>(row) * static_cast<unsigned>(runs * kVirtualLanes);
  }
  const std::size_t stride = static_cast<std::size_t>(runs) * kRunValues;
  x += at.first_column * stride + at.lane * W::kPerLane;
  const int left = mine.end - at.first_column;
  float acc[T::kRows][T::kColumns] = {};
  for (int first = 0; first < full; first += T::kAhead) {
    uint4 raw[T::kAhead][T::kRows];
#pragma unroll
    for (int i = 0; i < T::kAhead; ++i) {
#pragma unroll
      for (int r = 0; r < T::kRows; ++r) {
        if (first + i < full) raw[i][r] = weights[rows[r] + (first + i) * kVirtualLanes];
      }
    }
#pragma unroll
    for (int i = 0; i < T::kAhead; ++i) {
      if (first + i < full) {
        add_run<W, T>(raw[i], x + (first + i) * kRunValues, stride, left, W::kPerLane, acc);
      }
    }
  }
  if (full < runs) {
    uint4 raw[T::kRows];
#pragma unroll
    for (int r = 0; r < T::kRows; ++r) raw[r] = weights[rows[r] + full * kVirtualLanes];
    add_run<W, T>(raw, x + full * kRunValues, stride, left, steps - full * W::kPerLane, acc);
  }
#pragma unroll
  for (int r = 0; r < T::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < T::kColumns; ++c) {
      const float sum = sum_16_lanes(acc[r][c]);
      if (at.lane == 0 && at.first_row + r < w.rows && c < left) {
        part.out[static_cast<std::size_t>(at.first_column + c) * w.rows + at.first_row + r] = sum;
      }
    }
  }
}

template <class W, class T>
void launch_tile(StreamHandle stream, const FloatProducts& products, const float* x,
                 const Columns& columns) {
  const Grid grid{blocks_for(static_cast<std::size_t>(columns.most), T::kBlockColumns),
                  total_blocks(products, T::kBlockRows), static_cast<unsigned>(columns.parts)};
  launch("multiply_float", multiply_float<W, T>, grid, T::kThreads, 0, stream, products, x,
         columns);
}

template <class W>
void launch_multiply(StreamHandle stream, const FloatProducts& products, const float* x,
                     const Columns& columns) {
  const int likely = columns.likely();
  if (likely == 1) return launch_tile<W, NarrowTile<1>>(stream, products, x, columns);
  if (likely <= 4) return launch_tile<W, NarrowTile<4>>(stream, products, x, columns);
  if (likely <= 8) return launch_tile<W, NarrowTile<8>>(stream, products, x, columns);
  if (likely <= 16) return launch_tile<W, NarrowTile<16>>(stream, products, x, columns);
  launch_tile<W, WideTile>(stream, products, x, columns);
}

constexpr int kArrangeThreads = 256;

// arranged[i, run, lane, step] = x[row, (run * per_lane + step) * 16 + lane] of the row that column
// i takes, 0 beyond K and without one
__global__ void arrange(Columns columns, int cols, int per_lane, const float* x, float* arranged) {
  const int run_values = kVirtualLanes * per_lane;
  const int padded = runs_of(cols, per_lane) * run_values;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kArrangeThreads + threadIdx.x;
  if (i >= static_cast<std::int64_t>(columns.count) * padded) return;
  const int row = source_row(columns, static_cast<int>(i / padded));
  const int at = static_cast<int>(i % padded);
  const int run = at / run_values, lane = at % run_values / per_lane, step = at % per_lane;
  const int k = (run * per_lane + step) * kVirtualLanes + lane;
  arranged[i] = row >= 0 && k < cols ? x[static_cast<std::size_t>(row) * cols + k] : 0.0f;
}

}  // namespace

void queue_arrange(StreamHandle stream, const Columns& columns, int cols, int per_lane,
                   const float* x, float* arranged) {
  const std::size_t padded =
      static_cast<std::size_t>(runs_of(cols, per_lane)) * kVirtualLanes * per_lane;
  launch("arrange", arrange,
         {blocks_for(padded * static_cast<std::size_t>(columns.count), kArrangeThreads)},
         kArrangeThreads, 0, stream, columns, cols, per_lane, x, arranged);
}

void queue_multiply_float(StreamHandle stream, DType dtype, const FloatProducts& products,
                          const float* arranged, const Columns& columns) {
  switch (dtype) {
    case DType::kF32:
      return launch_multiply<WeightF32>(stream, products, arranged, columns);
    case DType::kF16:
      return launch_multiply<WeightF16>(stream, products, arranged, columns);
    case DType::kBF16:
      return launch_multiply<WeightBF16>(stream, products, arranged, columns);
    default:
      throw InternalError("a quantised type in a float product");
  }
}

}  // namespace specdec::cuda
