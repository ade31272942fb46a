// Products of one or two columns with quantised weights, by dots of four bytes (dp4a).
//
// A thread block holds a group of 32 weight rows. Weights come into shared memory several stages of
// eight blocks of K ahead; of a stage each warp takes one block (lane = row), decodes it and
// multiplies it by the columns. The dots are exact, so their order is free; the chains over the
// blocks, which are serial, are carried one stage later by one warp per column, while the other
// warps go on.
#include "backend/cuda/kernels/weight_stages.cuh"

namespace specdec::cuda {
namespace {

constexpr int kStageBlocks = kSubBlocks;
constexpr int kThreads = kStageBlocks * kWarpLanes;

// Floats that a block of K leaves for the chains: d, m [parts, 32], dots [columns, parts, 32].
template <class F>
SPECDEC_HD constexpr int result_floats(int columns) {
  return F::kParts * kGroupRows * (1 + (F::kMins ? 1 : 0) + columns);
}

// A column's block of 32, in the order in which it lies.
struct ColumnBlock {
  unsigned word[8];
};
__device__ __forceinline__ ColumnBlock load_column(const ActivationView& x, int column, int block) {
  const auto* quads =
      reinterpret_cast<const uint4*>(x.values + x.place(column, block) * kBlockValues);
  const uint4 low = quads[0], high = quads[1];
  return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
}

// The dots of row `lane` of one block with all columns.
template <class F>
__device__ __forceinline__ void multiply_block(const std::uint8_t* group, int b,
                                               const ColumnBlock* x, int columns, float* results) {
  const int lane = lane_of_warp();
  Quads quads;
  F::values(StagedGroup<F, kStageBlocks, kThreads>::planes(group, b), lane, &quads);
  const RowScales scales = StagedGroup<F, kStageBlocks, kThreads>::scales(group, 0, b, lane);
#pragma unroll
  for (int part = 0; part < F::kParts; ++part) {
    results[part * kGroupRows + lane] = scales.d[part];
    if constexpr (F::kMins) results[(F::kParts + part) * kGroupRows + lane] = scales.m[part];
  }
  float* dots = results + F::kParts * (F::kMins ? 2 : 1) * kGroupRows;
#pragma unroll
  for (int c = 0; c < kFewColumns; ++c) {
    if (c >= columns) break;
    int dot[2] = {0, 0};
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      int& sum = dot[F::kHalves ? q / 4 : 0];
      sum =
          __dp4a(static_cast<int>(quads.word[q]), static_cast<int>(x[c].word[quad_place(q)]), sum);
    }
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      dots[(c * F::kParts + part) * kGroupRows + lane] = static_cast<float>(dot[part]);
    }
  }
}

// The chain of row `lane` and `column` of x over the `count` blocks from `first` on, whose results
// lie behind each other; number: the column's among them.
template <class F>
__device__ __forceinline__ float add_stage(float acc, const float* results, int number, int stride,
                                           const ActivationView& x, int column, int first,
                                           int count) {
  const int lane = lane_of_warp();
  constexpr int kFields = F::kMins ? 2 : 1;
#pragma unroll
  for (int b = 0; b < kStageBlocks; ++b) {
    if (b >= count) break;
    const float* block = results + b * stride + lane;
    float d[2], m[2], dots[2];
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      d[part] = block[part * kGroupRows];
      if constexpr (F::kMins) m[part] = block[(F::kParts + part) * kGroupRows];
      dots[part] = block[(F::kParts * (kFields + number) + part) * kGroupRows];
    }
    const std::size_t at = x.place(column, first + b);
    acc = add_block<F>(acc, d, m, dots, load_terms<F>(x.scales + at, x.halves + at));
  }
  return acc;
}

// grid: (the groups of all products, parts of the columns). x: up to kFewColumns columns of each
// matrix; out [columns, N]
template <class F>
__global__ void __launch_bounds__(kThreads)
    multiply_few(QuantizedProducts products, ActivationView x, Columns all, int stages) {
  using Group = StagedGroup<F, kStageBlocks, kThreads>;
  SPECDEC_DYNAMIC_SHARED(std::uint8_t, shared);  // stages, then results [2, blocks of a stage]
  const MatrixColumns mine = part_of(all, static_cast<int>(blockIdx.y));
  const int columns = mine.end - mine.first;
  if (columns == 0) return;  // the whole block
  const auto part = find_part(products, mine.matrix, static_cast<int>(blockIdx.x), kGroupRows);
  const QuantizedView& w = part.weight;
  const int warp = warp_of_block(), stride = result_floats<F>(columns);
  auto* results = reinterpret_cast<float*>(shared + stages * Group::kBytes);
  const int total = (w.blocks + kStageBlocks - 1) / kStageBlocks;
  const auto blocks_in = [&](int s) {
    const int left = w.blocks - s * kStageBlocks;
    return left < kStageBlocks ? left : kStageBlocks;
  };
  int filling = 0, slot = 0;  // where the next stage goes, and where stage s lies
  const auto copy_stage = [&](int s) {
    if (s < total) {
      Group::copy(w, part.block, s * kStageBlocks, blocks_in(s), shared + filling * Group::kBytes,
                  static_cast<int>(threadIdx.x));
    }
    copy_async_commit();
    filling = next_slot(filling, stages);
  };
  for (int s = 0; s < stages - 1; ++s) copy_stage(s);
  float acc = 0.0f;
  for (int s = 0; s <= total; ++s) {
    const int block = s * kStageBlocks + warp;
    const bool works = block < w.blocks;
    ColumnBlock column[kFewColumns];
#pragma unroll
    for (int c = 0; c < kFewColumns; ++c) {
      if (works && c < columns) column[c] = load_column(x, mine.first + c, block);
    }
    copy_async_wait(stages - 2);
    __syncthreads();  // stage s is there, the results of s - 1 are, and stage s - 1 is free
    copy_stage(s + stages - 1);
    if (s > 0 && warp < columns) {
      acc = add_stage<F>(acc, results + (s - 1) % 2 * kStageBlocks * stride, warp, stride, x,
                         mine.first + warp, (s - 1) * kStageBlocks, blocks_in(s - 1));
    }
    if (works) {
      multiply_block<F>(shared + slot * Group::kBytes, warp, column, columns,
                        results + (s % 2 * kStageBlocks + warp) * stride);
    }
    slot = next_slot(slot, stages);
  }
  const int row = part.block * kGroupRows + lane_of_warp();
  if (warp < columns && row < w.rows) {
    part.out[static_cast<std::size_t>(mine.first + warp) * w.rows + row] = acc;
  }
}

}  // namespace

void queue_multiply_few(StreamHandle stream, DType dtype, const QuantizedProducts& products,
                        const ActivationView& x, const Columns& columns) {
  with_format(dtype, [&]<class F>() {
    constexpr int kStageBytes = StagedGroup<F, kStageBlocks, kThreads>::kBytes;
    const int result_bytes =
        2 * kStageBlocks * result_floats<F>(columns.most) * static_cast<int>(sizeof(float));
    const int stages = stages_that_fit(kStageBytes, result_bytes);
    launch("multiply_few", multiply_few<F>,
           {total_blocks(products, kGroupRows), static_cast<unsigned>(columns.parts)}, kThreads,
           static_cast<std::size_t>(stages * kStageBytes + result_bytes), stream, products, x,
           columns, stages);
  });
}

}  // namespace specdec::cuda
