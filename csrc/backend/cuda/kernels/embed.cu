// Rows of an embedding table, out of the layout that products read: out[i] = d * value (+ m), the
// operations of dequantize_row in their order. A table that is only looked up lies in host memory
// that the device reads; a row is a few KiB.
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/weight_formats.cuh"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 128;

// The row of the table that row i of a pass asks for. A drawn token that is none reads row 0: its
// row of logits is never reached.
__device__ __forceinline__ int row_of_token(const TokenRows& rows, int i, int table_rows) {
  int token = rows.tokens[i];
  if (token < 0) token = rows.drawn[place_of(token)].token;
  return token >= 0 && token < table_rows ? token : 0;
}

// grid: (rows, blocks of K / kThreads); a thread decodes one block. out [rows, K]
template <class F>
__global__ void __launch_bounds__(kThreads)
    embed_quantized(QuantizedView table, TokenRows rows, float* out) {
  const int b = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (b >= table.blocks) return;
  const int row = row_of_token(rows, static_cast<int>(blockIdx.x), table.rows);
  const int lane = row % kGroupRows;
  const std::size_t group = static_cast<std::size_t>(row / kGroupRows);
  const std::size_t at = group * table.blocks + b;
  const std::size_t super = group * (table.blocks / kSubBlocks) + b / kSubBlocks;
  Quads quads;
  F::values(table.planes + at * F::kPlaneBytes, lane, &quads);
  const RowScales scales = F::scales(table.scales + at * F::kScaleBytes,
                                     table.headers + super * F::kHeaderBytes, b % kSubBlocks, lane);
  float* block = out + (static_cast<std::size_t>(blockIdx.x) * table.blocks + b) * kBlockValues;
#pragma unroll
  for (int q = 0; q < 8; ++q) {
    const int part = F::kHalves ? q / 4 : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto value = static_cast<std::int8_t>(quads.word[q] >> (8 * j));
      float x = scales.d[part] * static_cast<float>(value);
      if constexpr (F::kMins) x = x + scales.m[part];
      block[4 * q + j] = x;
    }
  }
}

struct ValueF32 {
  using Stored = float;
  __device__ __forceinline__ static float value(float x) { return x; }
};
struct ValueF16 {
  using Stored = std::uint16_t;
  __device__ __forceinline__ static float value(Stored bits) { return half_value(bits); }
};
struct ValueBF16 {
  using Stored = std::uint16_t;
  __device__ __forceinline__ static float value(Stored bits) { return bf16_to_float(bits); }
};

// grid: (rows, K / kThreads). out [rows, K]
template <class V>
__global__ void __launch_bounds__(kThreads)
    embed_floats(FloatView table, TokenRows rows, float* out) {
  constexpr int kPerLane = values_per_lane(sizeof(typename V::Stored));
  constexpr int kRun = kVirtualLanes * kPerLane;
  const int k = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (k >= table.cols) return;
  const auto row =
      static_cast<std::size_t>(row_of_token(rows, static_cast<int>(blockIdx.x), table.rows));
  const auto* values = reinterpret_cast<const typename V::Stored*>(table.data) +
                       row * runs_of(table.cols, kPerLane) * kRun;
  const int at = k / kRun * kRun + k % kVirtualLanes * kPerLane + k % kRun / kVirtualLanes;
  out[static_cast<std::size_t>(blockIdx.x) * table.cols + k] = V::value(values[at]);
}

Grid grid_of(const TokenRows& rows, int count) {
  return {static_cast<unsigned>(rows.count), blocks_for(static_cast<std::size_t>(count), kThreads)};
}

}  // namespace

void queue_embed(StreamHandle stream, DType dtype, const QuantizedView& table,
                 const TokenRows& rows, float* out) {
  with_format(dtype, [&]<class F>() {
    launch("embed_quantized", embed_quantized<F>, grid_of(rows, table.blocks), kThreads, 0, stream,
           table, rows, out);
  });
}

void queue_embed(StreamHandle stream, DType dtype, const FloatView& table, const TokenRows& rows,
                 float* out) {
  const auto embed = [&]<class V>(V) {
    launch("embed_floats", embed_floats<V>, grid_of(rows, table.cols), kThreads, 0, stream, table,
           rows, out);
  };
  switch (dtype) {
    case DType::kF32:
      return embed(ValueF32{});
    case DType::kF16:
      return embed(ValueF16{});
    case DType::kBF16:
      return embed(ValueBF16{});
    default:
      throw InternalError(str(dtype_info(dtype).name, " is no float type"));
  }
}

}  // namespace specdec::cuda
