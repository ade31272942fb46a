// Rotation of queries and keys, storing of new cache rows, gathering of kept ones.
#include "backend/cuda/kernels/cache_rows.cuh"
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/launch.h"

namespace specdec::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpLanes;

// out = head rotated by cos_sin [pairs, 2]: x0 * cos - x1 * sin, x0 * sin + x1 * cos. head [D], out
// [D]; they may be the same, a pair is one thread's.
__device__ __forceinline__ void rotate(const RotaryShape& shape, const float* cos_sin,
                                       const float* head, float* out) {
  const int pairs = shape.rope_dims / 2;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int first = shape.interleaved ? 2 * i : i;
    const int second = shape.interleaved ? 2 * i + 1 : pairs + i;
    const float x0 = head[first], x1 = head[second];
    const float cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
    out[first] = x0 * cos - x1 * sin;
    out[second] = x0 * sin + x1 * cos;
  }
  for (int d = 2 * pairs + static_cast<int>(threadIdx.x); d < shape.head_dim; d += kThreads) {
    out[d] = head[d];
  }
}

// A block of 32 values as int8, by one warp: what cache_row.h defines.
__device__ __forceinline__ void store_q8_block(float value, std::uint8_t* out) {
  constexpr float kTiny = 7.52316385e-37f;  // 2^-120
  constexpr float kRound = 12582912.0f;
  unsigned bits = float_to_bits(value) & 0x7fffffffu;
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) {
    const unsigned other = __shfl_xor_sync(kFullWarp, bits, apart);
    bits = other > bits ? other : bits;
  }
  const float amax = bits_to_float(bits);
  const bool finite = bits < 0x7f800000u, usable = finite && amax >= kTiny;
  const float scaled = usable ? value * (127.0f / amax) : 0.0f;
  out[2 + lane_of_warp()] =
      static_cast<std::uint8_t>(static_cast<std::int8_t>((scaled + kRound) - kRound));
  if (lane_of_warp() == 0) {
    const float d = usable ? amax / 127.0f : finite ? 0.0f : bits_to_float(0x7fc00000u);
    *reinterpret_cast<std::uint16_t*>(out) = float_to_half(d);
  }
}

// row [D] -> out, by the whole block.
__device__ __forceinline__ void store_row(DType dtype, const float* row, int dim,
                                          std::uint8_t* out) {
  const int thread = static_cast<int>(threadIdx.x);
  if (dtype == DType::kF32) {
    for (int d = thread; d < dim; d += kThreads) reinterpret_cast<float*>(out)[d] = row[d];
  } else if (dtype == DType::kF16) {
    for (int d = thread; d < dim; d += kThreads) {
      reinterpret_cast<std::uint16_t*>(out)[d] = float_to_half(row[d]);
    }
  } else {
    for (int block = warp_of_block(); block < dim / 32; block += kWarps) {
      store_q8_block(row[32 * block + lane_of_warp()], out + block * kQ8Bytes);
    }
  }
}

// grid: (rows, H + Hkv): the query heads, then the heads of keys and values.
__global__ void __launch_bounds__(kThreads)
    rotate_and_store(RotaryShape shape, float* q, const float* k, const float* v,
                     const float* cos_sin, CacheTarget target) {
  SPECDEC_SHARED(float, key, [kMaxHeadDim]);
  const auto row = static_cast<std::size_t>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  cos_sin += row * shape.rope_dims;
  if (head < shape.heads) {  // the whole block
    float* query = q + (row * shape.heads + head) * shape.head_dim;
    rotate(shape, cos_sin, query, query);
    return;
  }
  const int kv_head = head - shape.heads;
  const std::size_t at = (row * shape.kv_heads + kv_head) * shape.head_dim;
  const std::int64_t offset = kv_head * target.head_stride +
                              (*target.base + static_cast<std::int64_t>(row)) * target.row_bytes;
  rotate(shape, cos_sin, k + at, key);
  __syncthreads();
  store_row(target.dtype, key, shape.head_dim, target.keys + offset);
  store_row(target.dtype, v + at, shape.head_dim, target.values + offset);
}

// One block per array, its rows in order: a destination never lies above a source still to be read.
// grid: (heads, 2): keys, values
__global__ void __launch_bounds__(kThreads)
    keep_rows(std::int64_t head_stride, int row_bytes, std::uint8_t* keys, std::uint8_t* values,
              int base, const int* kept, int count) {
  std::uint8_t* rows = (blockIdx.y == 0 ? keys : values) +
                       static_cast<std::int64_t>(blockIdx.x) * head_stride +
                       static_cast<std::int64_t>(base) * row_bytes;
  for (int i = 0; i < count; ++i) {
    if (kept[i] == i) continue;
    const std::uint8_t* from = rows + static_cast<std::int64_t>(kept[i]) * row_bytes;
    std::uint8_t* to = rows + static_cast<std::int64_t>(i) * row_bytes;
    // Each byte stays with its thread, so the rows follow each other without a barrier.
    for (int b = static_cast<int>(threadIdx.x); b < row_bytes; b += kThreads) to[b] = from[b];
  }
}

}  // namespace

void queue_rotate_and_store(StreamHandle stream, int rows, const RotaryShape& shape, float* q,
                            const float* k, const float* v, const float* cos_sin,
                            const CacheTarget& target) {
  const Grid grid{static_cast<unsigned>(rows), static_cast<unsigned>(shape.heads + shape.kv_heads),
                  1};
  launch("rotate_and_store", rotate_and_store, grid, kThreads, 0, stream, shape, q, k, v, cos_sin,
         target);
}

void queue_keep_rows(StreamHandle stream, int heads, std::int64_t head_stride, int row_bytes,
                     std::uint8_t* keys, std::uint8_t* values, int base, const int* kept,
                     int count) {
  launch("keep_rows", keep_rows, {static_cast<unsigned>(heads), 2, 1}, kThreads, 0, stream,
         head_stride, row_bytes, keys, values, base, kept, count);
}

}  // namespace specdec::cuda
