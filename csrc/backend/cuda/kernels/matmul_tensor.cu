// Products of any number of columns with quantised weights, by tensor cores
// (device_instructions.h): 16 columns (rows of x) by 8 weight rows by 32 values of K at once. A
// product over one block of K is one block's dots, exact; the chain over the blocks stays in the
// registers of the lane that holds the sum.
//
// A thread block holds `groups` groups of 32 weight rows and up to 8 * kOctets columns. Weights and
// activations come into shared memory some stages ahead of their use, by the whole block; then each
// warp multiplies its 8 * kRowTiles weight rows by all columns. So weights are read once per
// 8 * kOctets columns, and are decoded once by the warp that has them.
#include "backend/cuda/kernels/weight_stages.cuh"

namespace specdec::cuda {
namespace {

inline constexpr int kTileRows = 8;

// A verify pass: many thread blocks, each with much memory under way; two groups share their x
// where there are plenty.
template <int kOctetsOf>
struct Narrow {
  static constexpr int kRowTiles = 1;        // of a warp
  static constexpr int kOctets = kOctetsOf;  // of columns, at most
  static constexpr int kStageBlocks = 8;     // blocks of K in a stage
  static constexpr int kMaxGroups = 2;
  static constexpr int kBlocksPerSm = 2;
};
// Prefill: much arithmetic for each byte of shared memory.
struct Wide {
  static constexpr int kRowTiles = 2;
  static constexpr int kOctets = 8;
  static constexpr int kStageBlocks = 2;
  static constexpr int kMaxGroups = 4;
  static constexpr int kBlocksPerSm = 2;
};
// The weight rows of a warp, the warps of a group, and threads of a block if they are always as
// many.
template <class T>
inline constexpr int kWarpRows = kTileRows * static_cast<int>(T::kRowTiles);
template <class T>
inline constexpr int kGroupWarps = kGroupRows / kWarpRows<T>;
template <class T>
inline constexpr int kGroupThreads = kWarpLanes * kGroupWarps<T>;
template <class F, class T>
using Group = StagedGroup<F, T::kStageBlocks, kGroupThreads<T>>;
// The sums of a lane: [row tiles of the warp][pairs of octets][places]: columns g, g, g + 8, g + 8
// of the pair by rows 2t, 2t + 1, 2t, 2t + 1 of the tile. Half of a lone octet's are not there.
template <class T>
inline constexpr int kPlaces = T::kOctets == 1 ? 2 : 4;
template <class T>
using Sums = float[T::kRowTiles][(T::kOctets + 1) / 2][kPlaces<T>];

// Adding a dot to the bits of 1.5 * 2^23 gives the bits of 1.5 * 2^23 + dot: |dot| < 2^22.
inline constexpr int kDotZeroBits = 0x4b400000;
inline constexpr float kDotZero = 12582912.0f;

// Sizes and places within a stage: groups of weights, values of octets, their scales, and sums of
// halves where the format needs them.
template <class F, class T>
struct Stage {
  static constexpr int kGroupBytes = Group<F, T>::kBytes;
  static constexpr int kValueBytes = T::kStageBlocks * kOctetValueBytes;  // of an octet
  static constexpr int kScaleBytes = T::kStageBlocks * kOctetScaleBytes;
  SPECDEC_HD static constexpr int values_at(int groups) { return groups * kGroupBytes; }
  SPECDEC_HD static constexpr int scales_at(int groups, int octets) {
    return values_at(groups) + octets * kValueBytes;
  }
  SPECDEC_HD static constexpr int halves_at(int groups, int octets) {
    return scales_at(groups, octets) + octets * kScaleBytes;
  }
  SPECDEC_HD static constexpr int bytes(int groups, int octets) {
    return halves_at(groups, octets) + (kNeedsHalves<F> ? octets * kScaleBytes : 0);
  }
};

// A warp's table of scales of a stage, [blocks of K, rows, kEntry]: d of each part, then m.
template <class F>
inline constexpr int kEntry = (F::kMins ? 2 : 1) * static_cast<int>(F::kParts);
template <class F, class T>
inline constexpr int kTableFloats = kEntry<F> * kWarpRows<T> * static_cast<int>(T::kStageBlocks);

// first_block: of K, of the stage
template <class F, class T>
__device__ __forceinline__ void decode_scales(const std::uint8_t* group, int first_block,
                                              int first_row, int count, float* table) {
  constexpr int kRows = kWarpRows<T>;
  for (int i = lane_of_warp(); i < count * kRows; i += kWarpLanes) {
    const RowScales scales =
        Group<F, T>::scales(group, first_block, i / kRows, first_row + i % kRows);
    float* entry = table + i * kEntry<F>;
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      entry[part] = scales.d[part];
      if constexpr (F::kMins) entry[F::kParts + part] = scales.m[part];
    }
  }
}

// kCount floats that lie together, in reads of up to 16 bytes.
template <int kCount>
__device__ __forceinline__ void load_floats(const float* from, float (&to)[kCount]) {
  if constexpr (kCount == 2) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    to[0] = bits_to_float(bits.x);
    to[1] = bits_to_float(bits.y);
  } else {
    static_assert(kCount % 4 == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const uint4 bits = *reinterpret_cast<const uint4*>(from + i);
      to[i] = bits_to_float(bits.x);
      to[i + 1] = bits_to_float(bits.y);
      to[i + 2] = bits_to_float(bits.z);
      to[i + 3] = bits_to_float(bits.w);
    }
  }
}

// One block of K of one octet of columns, as this lane needs it: quads t and t + 4 of column g and
// the column's scales; zeros where the octet does not exist.
struct LaneColumns {
  uint2 quads;
  ColumnTerms terms;
};
template <class F, class T>
__device__ __forceinline__ LaneColumns load_octet(const std::uint8_t* stage, int groups, int octet,
                                                  int octets, int b) {
  if (octet > 0 && octet >= octets) return {{0, 0}, {}};
  using S = Stage<F, T>;
  const int lane = lane_of_warp(), at = b * kOctet + lane / 4;
  const std::uint8_t* values = stage + S::values_at(groups) + octet * S::kValueBytes;
  const std::uint8_t* scales = stage + S::scales_at(groups, octets) + octet * S::kScaleBytes;
  const std::uint8_t* halves = stage + S::halves_at(groups, octets) + octet * S::kScaleBytes;
  return {reinterpret_cast<const uint2*>(values)[b * kWarpLanes + lane],
          load_terms<F>(reinterpret_cast<const ColumnScales*>(scales) + at,
                        reinterpret_cast<const ColumnHalves*>(halves) + at)};
}

// entries: the scales of rows 2t and 2t + 1. acc: see Sums
template <class F, int kPlaces>
__device__ __forceinline__ void add_tile(const LaneColumns& low, const LaneColumns& high,
                                         const unsigned (&weights)[2],
                                         const float (&entries)[2 * kEntry<F>],
                                         float (&acc)[kPlaces]) {
  int dots[F::kParts][4];
  if constexpr (F::kHalves) {
    multiply_16x16(dots[0], low.quads.x, high.quads.x, weights[0], kDotZeroBits);
    multiply_16x16(dots[1], low.quads.y, high.quads.y, weights[1], kDotZeroBits);
  } else {
    const unsigned columns[4] = {low.quads.x, high.quads.x, low.quads.y, high.quads.y};
    multiply_16x32(dots[0], columns, weights, kDotZeroBits);
  }
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) {
    const float* entry = entries + i % 2 * kEntry<F>;
    float values[2] = {};
#pragma unroll
    for (int part = 0; part < F::kParts; ++part) {
      values[part] = bits_to_float(static_cast<unsigned>(dots[part][i])) - kDotZero;
    }
    acc[i] = add_block<F>(acc[i], entry, entry + F::kParts, values, i < 2 ? low.terms : high.terms);
  }
}

// A warp's tile over block `b` of K of a stage.
template <class F, class T>
__device__ __forceinline__ void add_tiles(const std::uint8_t* stage, const std::uint8_t* group,
                                          const float* table, int first_row, int groups, int octets,
                                          int b, Sums<T>& acc) {
  const int lane = lane_of_warp(), t = lane % 4;
  unsigned weights[T::kRowTiles][2];
  float entries[T::kRowTiles][2 * kEntry<F>];
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r) {
    const int row = r * kTileRows;
    F::pair(Group<F, T>::planes(group, b), first_row + row + lane / 4, t, weights[r]);
    load_floats(table + (b * kWarpRows<T> + row + 2 * t) * kEntry<F>, entries[r]);
  }
#pragma unroll
  for (int pair = 0; pair < (T::kOctets + 1) / 2; ++pair) {
    if (pair > 0 && 2 * pair >= octets) break;
    const LaneColumns low = load_octet<F, T>(stage, groups, 2 * pair, octets, b);
    LaneColumns high = {};
    if constexpr (T::kOctets > 1) high = load_octet<F, T>(stage, groups, 2 * pair + 1, octets, b);
#pragma unroll
    for (int r = 0; r < T::kRowTiles; ++r) {
      add_tile<F>(low, high, weights[r], entries[r], acc[r][pair]);
    }
  }
}

// Asks for the blocks of K of stage `s`: the threads of each group for its weights, and in turn for
// `octets` octets of x.
template <class F, class T>
__device__ __forceinline__ void copy_stage(const ProductPart<QuantizedView>& part, int groups,
                                           const ActivationView& x, int first_octet, int octets,
                                           int s, std::uint8_t* to) {
  using S = Stage<F, T>;
  constexpr int kThreads = kGroupThreads<T>;
  const int mine = static_cast<int>(threadIdx.x) / kThreads;  // of the block's groups
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int first = s * T::kStageBlocks, left = x.blocks - first;
  const int count = left < T::kStageBlocks ? left : T::kStageBlocks;
  const int group = part.block * groups + mine;
  if (group < row_blocks(part.weight.rows, kGroupRows)) {
    Group<F, T>::copy(part.weight, group, first, count, to + mine * S::kGroupBytes, thread);
  }
  for (int i = mine; i < octets; i += groups) {
    const std::size_t block = static_cast<std::size_t>(first_octet + i) * x.blocks + first;
    const auto copy_scales = [&](int at, const void* from) {
      copy_run<S::kScaleBytes, kThreads>(to + at + i * S::kScaleBytes, from,
                                         count * kOctetScaleBytes, thread);
    };
    copy_run<S::kValueBytes, kThreads>(to + S::values_at(groups) + i * S::kValueBytes,
                                       x.values + block * kOctetValueBytes,
                                       count * kOctetValueBytes, thread);
    copy_scales(S::scales_at(groups, octets), x.scales + block * kOctet);
    if constexpr (kNeedsHalves<F>) {
      copy_scales(S::halves_at(groups, octets), x.halves + block * kOctet);
    }
  }
}

// out [columns, N]: the tile of this warp. first: the first column and row of the tile
template <class T>
__device__ __forceinline__ void store_tile(const Sums<T>& acc, int first_column, int end_column,
                                           int first_row, int rows, float* out) {
  const int lane = lane_of_warp();
#pragma unroll
  for (int r = 0; r < T::kRowTiles; ++r) {
#pragma unroll
    for (int pair = 0; pair < (T::kOctets + 1) / 2; ++pair) {
#pragma unroll
      for (int i = 0; i < kPlaces<T>; ++i) {
        const int column = first_column + (2 * pair + i / 2) * kOctet + lane / 4;
        const int row = first_row + r * kTileRows + 2 * (lane % 4) + i % 2;
        if (column < end_column && row < rows) {
          out[static_cast<std::size_t>(column) * rows + row] = acc[r][pair][i];
        }
      }
    }
  }
}

// grid: (tiles of a matrix's columns, blocks of all products, parts of the columns): neighbours
// share their weights. block: the warps of `groups` groups. x [columns, K], out [columns, N]
template <class F, class T>
__global__ void __launch_bounds__(kWarpLanes* kGroupWarps<T>* static_cast<int>(T::kMaxGroups),
                                  T::kBlocksPerSm)
    multiply_tensor(QuantizedProducts products, ActivationView x, Columns all, int groups,
                    int stages) {
  using S = Stage<F, T>;
  SPECDEC_DYNAMIC_SHARED(std::uint8_t, shared);  // stages, then a table of scales for each warp
  const MatrixColumns mine = part_of(all, static_cast<int>(blockIdx.z));
  const int first_octet = mine.first / kOctet + static_cast<int>(blockIdx.x) * T::kOctets;
  const int octets_left = octets_of(mine.end) - first_octet;
  if (octets_left <= 0) return;  // the whole block
  const auto part =
      find_part(products, mine.matrix, static_cast<int>(blockIdx.y), groups * kGroupRows);
  const int octets = octets_left < T::kOctets ? octets_left : T::kOctets;
  const int most = octets_of(all.most) < T::kOctets ? octets_of(all.most) : T::kOctets;
  const int stage_bytes = S::bytes(groups, most);
  const int warp = warp_of_block(), group = warp / kGroupWarps<T>;
  const int first_row = warp % kGroupWarps<T> * kWarpRows<T>;  // in the group
  float* table =
      reinterpret_cast<float*>(shared + stages * stage_bytes) + warp * kTableFloats<F, T>;

  const int total = (x.blocks + T::kStageBlocks - 1) / T::kStageBlocks;
  int filling = 0, slot = 0;  // where the next stage goes, and where stage s lies
  const auto copy = [&](int s) {
    if (s < total) {
      copy_stage<F, T>(part, groups, x, first_octet, octets, s, shared + filling * stage_bytes);
    }
    copy_async_commit();
    filling = next_slot(filling, stages);
  };
  for (int s = 0; s < stages - 1; ++s) copy(s);
  Sums<T> acc = {};
  for (int s = 0; s < total; ++s) {
    copy_async_wait(stages - 2);
    __syncthreads();  // stage s is there, and everybody is done with the one before
    copy(s + stages - 1);
    const std::uint8_t* stage = shared + slot * stage_bytes;
    const std::uint8_t* weights = stage + group * S::kGroupBytes;
    const int left = x.blocks - s * T::kStageBlocks;
    const int count = left < T::kStageBlocks ? left : T::kStageBlocks;
    decode_scales<F, T>(weights, s * T::kStageBlocks, first_row, count, table);
    __syncwarp();
    const auto add_block_of_k = [&](int b) {
      add_tiles<F, T>(stage, weights, table, first_row, groups, octets, b, acc);
    };
    if (count == T::kStageBlocks) {
#pragma unroll
      for (int b = 0; b < T::kStageBlocks; ++b) add_block_of_k(b);
    } else {
#pragma unroll 1
      for (int b = 0; b < count; ++b) add_block_of_k(b);
    }
    __syncwarp();  // before the table is written again
    slot = next_slot(slot, stages);
  }
  store_tile<T>(acc, first_octet * kOctet, mine.end,
                (part.block * groups + group) * kGroupRows + first_row, part.weight.rows, part.out);
}

// Thread blocks that keep a large device busy; below that, they hold one group of rows each.
constexpr std::size_t kManyBlocks = 512;

template <class F, class T>
void launch_tensor(StreamHandle stream, const QuantizedProducts& products, const ActivationView& x,
                   const Columns& columns) {
  const unsigned tiles = blocks_for(static_cast<std::size_t>(octets_of(columns.most)), T::kOctets);
  const auto parts = static_cast<unsigned>(columns.parts);
  const bool many =
      static_cast<std::size_t>(tiles) * total_blocks(products, kGroupRows) * parts >= kManyBlocks;
  const int groups = many ? T::kMaxGroups : 1, warps = groups * kGroupWarps<T>;
  const int octets = std::min(octets_of(columns.most), T::kOctets);
  const int stage_bytes = Stage<F, T>::bytes(groups, octets);
  const int table_bytes = warps * kTableFloats<F, T> * static_cast<int>(sizeof(float));
  const int stages = stages_that_fit(stage_bytes, table_bytes);
  launch("multiply_tensor", multiply_tensor<F, T>,
         {tiles, total_blocks(products, groups * kGroupRows), parts}, warps * kWarpLanes,
         static_cast<std::size_t>(stages * stage_bytes + table_bytes), stream, products, x, columns,
         groups, stages);
}

}  // namespace

void queue_multiply_tensor(StreamHandle stream, DType dtype, const QuantizedProducts& products,
                           const ActivationView& x, const Columns& columns) {
  with_format(dtype, [&]<class F>() {
    if (columns.likely() <= kOctet) {
      launch_tensor<F, Narrow<1>>(stream, products, x, columns);
    } else if (columns.likely() <= 2 * kOctet) {
      launch_tensor<F, Narrow<2>>(stream, products, x, columns);
    } else {
      launch_tensor<F, Wide>(stream, products, x, columns);
    }
  });
}

}  // namespace specdec::cuda
