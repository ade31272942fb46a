// Matrix products: part of kernels.inl.

// --- Packed formats
// ---------------------------------------------------------------------------------- A packed group
// (32 rows) is a sequence of blocks (32 values of K); the K types put a header before every 8
// blocks (a superblock). A format says how to read
//   header   d (and -dmin) as halves, [32 rows] each; none for the simple types
//   scales   of a block: d (and m) as halves, or small integers that scale the header's
//   planes   the weights as unsigned integers, first those of rows 0..15, then of rows 16..31. In a
//   64-byte
//            vector, byte 4 * row + j belongs to value 4q + j of the row: q numbers the quads, 8 in
//            a block
//     nibbles  4 vectors: quad v in the low, quad v + 4 in the high half of the bytes of vector v
//     pairs    2 vectors: quad 4v + i in bits 2i..2i+1 of vector v
//     bits     1 vector:  quad i in bit i
//     bytes    8 vectors: quad v
//   codes        the same planes, holding codes of a codebook instead
// `row` is the first of the kLanes rows that are being read.

// d (and m) as floats: [0] for the block, or [0], [1] for its halves of 16.
struct BlockScales {
  LaneF d[2];
  LaneF m[2];
};

template <int kQuad>
SPECDEC_INLINE LaneB nibble_quad(const uint8_t* planes) {
  return bytes_field < kQuad<4 ? 0 : 4, 15>(bytes_load(planes + 64 * (kQuad % 4)));
}
template <int kQuad>
SPECDEC_INLINE LaneB pair_quad(const uint8_t* planes) {
  return bytes_field<2 * (kQuad % 4), 3>(bytes_load(planes + 64 * (kQuad / 4)));
}

struct Nibbles {
  static constexpr int kBits = 4;
  static constexpr size_t kVectors = 4;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return nibble_quad<kQuad>(planes);
  }
};
struct NibblesAndBits {
  static constexpr int kBits = 5;
  static constexpr size_t kVectors = 5;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return bytes_merge<kQuad, 1, 4>(nibble_quad<kQuad>(planes), bytes_load(planes + 256));
  }
};
struct NibblesAndPairs {
  static constexpr int kBits = 6;
  static constexpr size_t kVectors = 6;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return bytes_merge<2 * (kQuad % 4), 3, 4>(nibble_quad<kQuad>(planes),
                                              bytes_load(planes + 256 + 64 * (kQuad / 4)));
  }
};
struct Bytes {
  static constexpr int kBits = 8;
  static constexpr size_t kVectors = 8;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return bytes_load(planes + 64 * kQuad);
  }
};
struct Pairs {
  static constexpr int kBits = 2;
  static constexpr size_t kVectors = 2;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return pair_quad<kQuad>(planes);
  }
};
struct PairsAndBits {
  static constexpr int kBits = 3;
  static constexpr size_t kVectors = 3;
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return bytes_merge<kQuad, 1, 2>(pair_quad<kQuad>(planes), bytes_load(planes + 128));
  }
};

// The values of a codebook as the unsigned integers that a product takes.
struct UnsignedCodebook {
  alignas(16) uint8_t values[16];
};
constexpr UnsignedCodebook unsigned_codebook(const Codebook& book) {
  UnsignedCodebook out{};
  for (int i = 0; i < 16; ++i) {
    out.values[i] = static_cast<uint8_t>(book.values[i] + book.zero_point);
  }
  return out;
}
// Planes of codes. Mind that DotSum of the AVX2 level takes the zero point of 8 bits to be 128.
template <const Codebook& kBook, class Planes>
struct Codes {
  static constexpr int kBits = kBook.bits;
  static constexpr size_t kVectors = Planes::kVectors;
  static constexpr UnsignedCodebook kTable = unsigned_codebook(kBook);
  static_assert(kBook.bits < 8 || kBook.zero_point == 128);
  template <int kQuad>
  static SPECDEC_INLINE LaneB quad(const uint8_t* planes) {
    return bytes_lookup16(Planes::template quad<kQuad>(planes), kTable.values);
  }
};

struct PlainScales {
  static constexpr bool kHalves = false, kMins = false;
  static constexpr size_t kSuperBlocks = 1, kHeaderBytes = 0, kScaleBytes = 64;
  static SPECDEC_INLINE BlockScales load(const uint8_t*, const uint8_t* scales, int row) {
    BlockScales s;
    s.d[0] = lane_load_f16(scales + 2 * row);
    return s;
  }
};
// The same with bfloat16, for scales that are powers of two.
struct PowerScales {
  static constexpr bool kHalves = false, kMins = false;
  static constexpr size_t kSuperBlocks = 1, kHeaderBytes = 0, kScaleBytes = 64;
  static SPECDEC_INLINE BlockScales load(const uint8_t*, const uint8_t* scales, int row) {
    BlockScales s;
    s.d[0] = lane_load_bf16(scales + 2 * row);
    return s;
  }
};
struct PlainScalesAndMins {
  static constexpr bool kHalves = false, kMins = true;
  static constexpr size_t kSuperBlocks = 1, kHeaderBytes = 0, kScaleBytes = 128;
  static SPECDEC_INLINE BlockScales load(const uint8_t*, const uint8_t* scales, int row) {
    BlockScales s;
    s.d[0] = lane_load_f16(scales + 2 * row);
    s.m[0] = lane_load_f16(scales + 64 + 2 * row);
    return s;
  }
};
// A block: 32 scales, 32 minima. A half times a 6-bit integer is exact in float.
struct SuperScalesAndMins {
  static constexpr bool kHalves = false, kMins = true;
  static constexpr size_t kSuperBlocks = 8, kHeaderBytes = 128, kScaleBytes = 64;
  static SPECDEC_INLINE BlockScales load(const uint8_t* header, const uint8_t* scales, int row) {
    BlockScales s;
    s.d[0] = lane_mul(lane_load_f16(header + 2 * row), lane_load_u8(scales + row));
    s.m[0] = lane_mul(lane_load_f16(header + 64 + 2 * row), lane_load_u8(scales + 32 + row));
    return s;
  }
};
// A block: 32 signed scales of its first half, 32 of the second.
struct SuperScalesOfHalves {
  static constexpr bool kHalves = true, kMins = false;
  static constexpr size_t kSuperBlocks = 8, kHeaderBytes = 64, kScaleBytes = 64;
  static SPECDEC_INLINE BlockScales load(const uint8_t* header, const uint8_t* scales, int row) {
    const LaneF d = lane_load_f16(header + 2 * row);
    BlockScales s;
    s.d[0] = lane_mul(d, lane_load_i8(scales + row));
    s.d[1] = lane_mul(d, lane_load_i8(scales + 32 + row));
    return s;
  }
};
// The same with bytes scale | min << 4.
struct SuperScalesAndMinsOfHalves {
  static constexpr bool kHalves = true, kMins = true;
  static constexpr size_t kSuperBlocks = 8, kHeaderBytes = 128, kScaleBytes = 64;
  static SPECDEC_INLINE BlockScales load(const uint8_t* header, const uint8_t* scales, int row) {
    const LaneF d = lane_load_f16(header + 2 * row), m = lane_load_f16(header + 64 + 2 * row);
    BlockScales s;
    s.d[0] = lane_mul(d, lane_load_u4_low(scales + row));
    s.d[1] = lane_mul(d, lane_load_u4_low(scales + 32 + row));
    s.m[0] = lane_mul(m, lane_load_u4_high(scales + row));
    s.m[1] = lane_mul(m, lane_load_u4_high(scales + 32 + row));
    return s;
  }
};

// d * unit, exact: a unit is a power of two.
template <const Codebook& kBook>
SPECDEC_INLINE LaneF codebook_d(const uint8_t* header, int row) {
  const LaneF d = lane_load_f16(header + 2 * row);
  if constexpr (kBook.unit == 1.0f) return d;
  return lane_mul(d, lane_set1(kBook.unit));
}
// A header: d, then the signed scales of its blocks, 32 each; a block begins with its planes.
template <const Codebook& kBook>
struct HeaderScales {
  static constexpr bool kHalves = false, kMins = false;
  static constexpr size_t kSuperBlocks = 8, kHeaderBytes = 64 + 8 * 32, kScaleBytes = 0;
  static SPECDEC_INLINE BlockScales load(const uint8_t* header, const uint8_t* scales, int row) {
    BlockScales s;
    s.d[0] = lane_mul(codebook_d<kBook>(header, row), lane_load_i8(scales + row));
    return s;
  }
};
// The same with bytes s | t << 4 for scales 2s + 1 and 2t + 1 of the halves of a block.
template <const Codebook& kBook>
struct HeaderScalesOfHalves {
  static constexpr bool kHalves = true, kMins = false;
  static constexpr size_t kSuperBlocks = 8, kHeaderBytes = 64 + 8 * 32, kScaleBytes = 0;
  static SPECDEC_INLINE BlockScales load(const uint8_t* header, const uint8_t* scales, int row) {
    const LaneF d = codebook_d<kBook>(header, row);
    const LaneF twice = lane_mul(d, lane_set1(2.0f));
    BlockScales s;
    s.d[0] = lane_fma(twice, lane_load_u4_low(scales + row), d);
    s.d[1] = lane_fma(twice, lane_load_u4_high(scales + row), d);
    return s;
  }
};

template <class Planes, class Scales>
struct Format : Planes, Scales {
  static constexpr size_t kHalfPlaneBytes = 64 * Planes::kVectors;  // of 16 rows
  static constexpr size_t kBlockBytes = Scales::kScaleBytes + 2 * kHalfPlaneBytes;
};
using FormatQ4_0 = Format<Nibbles, PlainScales>;
using FormatQ4_1 = Format<Nibbles, PlainScalesAndMins>;
using FormatQ5_0 = Format<NibblesAndBits, PlainScales>;
using FormatQ5_1 = Format<NibblesAndBits, PlainScalesAndMins>;
using FormatQ8_0 = Format<Bytes, PlainScales>;
using FormatQ2_K = Format<Pairs, SuperScalesAndMinsOfHalves>;
using FormatQ3_K = Format<PairsAndBits, SuperScalesOfHalves>;
using FormatQ4_K = Format<Nibbles, SuperScalesAndMins>;
using FormatQ5_K = Format<NibblesAndBits, SuperScalesAndMins>;
using FormatQ6_K = Format<NibblesAndPairs, SuperScalesOfHalves>;
using FormatIQ4_NL = Format<Codes<kCodebookIQ4, Nibbles>, PlainScales>;
using FormatMXFP4 = Format<Codes<kCodebookMXFP4, Nibbles>, PowerScales>;
using FormatIQ4_XS = Format<Codes<kCodebookIQ4, Nibbles>, HeaderScales<kCodebookIQ4>>;
using FormatIQ3_XXS = Format<Codes<kCodebookIQ3_XXS, Nibbles>, HeaderScales<kCodebookIQ3_XXS>>;
using FormatIQ3_S = Format<Codes<kCodebookIQ3_S, Nibbles>, HeaderScales<kCodebookIQ3_S>>;
using FormatIQ2_XXS = Format<Codes<kCodebookIQ2, PairsAndBits>, HeaderScales<kCodebookIQ2>>;
using FormatIQ2_XS = Format<Codes<kCodebookIQ2, PairsAndBits>, HeaderScalesOfHalves<kCodebookIQ2>>;
using FormatIQ1_S = Format<Codes<kCodebookIQ1, PairsAndBits>, HeaderScales<kCodebookIQ1>>;
using FormatIQ1_M = Format<Codes<kCodebookIQ1, PairsAndBits>, HeaderScalesOfHalves<kCodebookIQ1>>;

// --- The product
// --------------------------------------------------------------------------------------- kVecs
// vectors of kLanes rows are in hand at once, so that a broadcast quad of activations feeds kVecs
// dot products.

// Where the planes of rows [row, row + kLanes) of a block begin.
template <class Format>
SPECDEC_INLINE const uint8_t* planes_of(const uint8_t* planes, int row) {
  return planes + static_cast<size_t>(row / 16) * Format::kHalfPlaneBytes + 4 * (row % 16);
}

// Adds quads [kQuad, kEnd) of a block to the dot products of kCols columns; act [kCols].
template <class Format, int kCols, int kQuad, int kBegin, int kEnd>
SPECDEC_INLINE void dot_quads(const uint8_t* planes, int row, const ActBlock* act,
                              DotSum<Format::kBits> (*dots)[kVecs]) {
  if constexpr (kQuad < kEnd) {
    LaneB w[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      w[v] = Format::template quad<kQuad>(planes_of<Format>(planes, row + v * kLanes));
    }
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      const LaneX x = bytes_broadcast(act[c].q + 4 * kQuad);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        dots[c][v].template add<kQuad, kQuad == kBegin, kQuad == kEnd - 1>(w[v], x);
      }
    }
    dot_quads<Format, kCols, kQuad + 1, kBegin, kEnd>(planes, row, act, dots);
  }
}

// acc[c] = fma(d * d_act[c], float(start + dot(quads)), acc[c]) for one run of quads.
template <class Format, int kCols, int kBegin, int kEnd, int kPart>
SPECDEC_INLINE void accumulate_quads(const uint8_t* planes, int row, const BlockScales* scales,
                                     const ActBlock* act, LaneF (*acc)[kVecs]) {
  DotSum<Format::kBits> dots[kCols][kVecs];
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) dots[c][v].begin(Format::kMins ? 0 : act[c].u.start[kPart]);
  }
  dot_quads<Format, kCols, kBegin, kBegin, kEnd>(planes, row, act, dots);
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) {
    const LaneF d_act = lane_set1(act[c].d);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const LaneF dot = lane_to_float(dots[c][v].total());
      acc[c][v] = lane_fma(lane_mul(scales[v].d[kPart], d_act), dot, acc[c][v]);
    }
  }
}

template <int kCols>
SPECDEC_INLINE void accumulate_mins(const BlockScales* scales, const ActBlock* act, int part,
                                    LaneF (*acc)[kVecs]) {
#pragma GCC unroll 8
  for (int c = 0; c < kCols; ++c) {
    const LaneF sum = lane_set1(act[c].u.sum[part]);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) acc[c][v] = lane_fma(scales[v].m[part], sum, acc[c][v]);
  }
}

template <class Format, int kCols>
SPECDEC_INLINE void accumulate_block(const uint8_t* header, const uint8_t* scales,
                                     const uint8_t* block, int row, const ActBlock* act,
                                     LaneF (*acc)[kVecs]) {
  const uint8_t* planes = block + Format::kScaleBytes;
  BlockScales s[kVecs];
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) s[v] = Format::load(header, scales, row + v * kLanes);
  if constexpr (Format::kHalves) {
    accumulate_quads<Format, kCols, 0, 4, 0>(planes, row, s, act, acc);
    accumulate_quads<Format, kCols, 4, 8, 1>(planes, row, s, act, acc);
  } else {
    accumulate_quads<Format, kCols, 0, 8, 0>(planes, row, s, act, acc);
  }
  if constexpr (Format::kMins) accumulate_mins<kCols>(s, act, 0, acc);
  if constexpr (Format::kMins && Format::kHalves) accumulate_mins<kCols>(s, act, 1, acc);
}

// See MatmulGroupFn. Each row has its own accumulator, a serial chain over the blocks, so no
// horizontal sum exists and a column's result does not depend on kCols. One decoding of a block
// serves all columns.
template <class Format, int kCols>
void matmul_group(const uint8_t* group, size_t blocks, const ActBlock* act, float* out,
                  size_t out_stride, int valid) {
  for (int row = 0; row < kGroupRows; row += kLanes * kVecs) {
    LaneF acc[kCols][kVecs];
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) acc[c][v] = lane_zero();
    }
    const uint8_t* p = group;
    const ActBlock* a = act;
    for (size_t first = 0; first < blocks; first += Format::kSuperBlocks) {
      const uint8_t* header = p;
      if constexpr (Format::kHeaderBytes > 0) prefetch_lines<Format::kHeaderBytes>(p);
      p += Format::kHeaderBytes;
      for (size_t i = 0; i < Format::kSuperBlocks; ++i, p += Format::kBlockBytes, a += kCols) {
        if (row == 0) prefetch_lines<Format::kBlockBytes>(p);
        const uint8_t* scales = Format::kScaleBytes == 0 ? header + 64 + 32 * i : p;
        accumulate_block<Format, kCols>(header, scales, p, row, a, acc);
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const int lane = row + v * kLanes;
        lane_store(out + static_cast<size_t>(c) * out_stride + lane, acc[c][v], valid - lane);
      }
    }
  }
}

// --- Activations
// --------------------------------------------------------------------------------------

// Below this the inverse scale would overflow; such a block counts as zero.
constexpr float kTinyActivation = 7.52316385e-37f;  // 2^-120

// amax = max|x|; d = amax / 127; q = round_to_even(x * (127 / amax)). A block that holds an
// infinity or a NaN gets d = NaN, so that the row's result says so instead of looking plausible.
void quantize_row(const float* x, size_t blocks, ActKind kind, ActBlock* out, size_t stride) {
  for (size_t b = 0; b < blocks; ++b, x += kActBlockSize, out += stride) {
    const F32x16 low = f_load(x), high = f_load(x + 16);
    const uint32_t bits = max_abs_bits(low, high);
    float amax;
    __builtin_memcpy(&amax, &bits, sizeof(amax));
    const bool finite = bits < 0x7f800000u;
    const bool usable = finite && amax >= kTinyActivation;
    const F32x16 inverse = f_set1(usable ? 127.0f / amax : 0.0f);
    const F32x16 zero = f_zero();
    const F32x16 x0 = usable ? f_mul(low, inverse) : zero;
    const F32x16 x1 = usable ? f_mul(high, inverse) : zero;
    const int32_t sum0 = round_to_i8(x0, out->q);
    const int32_t sum1 = round_to_i8(x1, out->q + 16);
    out->d = usable ? amax / 127.0f : finite ? 0.0f : __builtin_nanf("");
    if (kind.sums) {
      out->u.sum[0] = out->d * static_cast<float>(kind.halves ? sum0 : sum0 + sum1);
      out->u.sum[1] = out->d * static_cast<float>(sum1);
    } else {
      out->u.start[0] = -kind.zero_point * (kind.halves ? sum0 : sum0 + sum1);
      out->u.start[1] = -kind.zero_point * sum1;
    }
  }
}

// --- Float weights
// ------------------------------------------------------------------------------------

struct LoadF32 {
  static constexpr size_t kBytes = 4;
  static SPECDEC_INLINE F32x16 load(const uint8_t* p) {
    return f_load(reinterpret_cast<const float*>(p));
  }
  static SPECDEC_INLINE F32x16 load_n(const uint8_t* p, size_t n) {
    return f_load_n(reinterpret_cast<const float*>(p), n);
  }
};
struct LoadF16 {
  static constexpr size_t kBytes = 2;
  static SPECDEC_INLINE F32x16 load(const uint8_t* p) { return f_load_f16(p); }
  static SPECDEC_INLINE F32x16 load_n(const uint8_t* p, size_t n) { return f_load_f16_n(p, n); }
};
struct LoadBF16 {
  static constexpr size_t kBytes = 2;
  static SPECDEC_INLINE F32x16 load(const uint8_t* p) { return f_load_bf16(p); }
  static SPECDEC_INLINE F32x16 load_n(const uint8_t* p, size_t n) { return f_load_bf16_n(p, n); }
};

// Lane j sums the products of k = j mod 16 in order, each by one fused multiply-add; then the fixed
// tree. weights: kRows rows, row_bytes apart; x [K / 16, kCols, 16], out [kCols, out_stride]
template <class Load, int kRows, int kCols>
SPECDEC_INLINE void matmul_float_tile(const uint8_t* weights, size_t row_bytes, size_t k,
                                      const float* x, float* out, size_t out_stride) {
  F32x16 acc[kRows][kCols];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) acc[r][c] = f_zero();
  }
  // The next tiles of rows: whole tiles ahead, so that no line is asked for twice.
  const size_t tile_bytes = kRows * row_bytes;
  const size_t ahead = (kPrefetchBytes + tile_bytes - 1) / tile_bytes * tile_bytes;
  for_each_16(k, [&](size_t i, size_t n) SPECDEC_LAMBDA_INLINE {
    F32x16 w[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* p = weights + static_cast<size_t>(r) * row_bytes + i * Load::kBytes;
      __builtin_prefetch(p + ahead, 0, 3);
      w[r] = n == 16 ? Load::load(p) : Load::load_n(p, n);
    }
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) {
      const F32x16 xc = f_load(x + i * kCols + 16 * static_cast<size_t>(c));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[r][c] = f_fma(w[r], xc, acc[r][c]);
    }
  });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < kCols; ++c) out[static_cast<size_t>(c) * out_stride + r] = f_sum(acc[r][c]);
  }
}

// As many rows at once as there are registers for.
template <class Load, int kCols>
SPECDEC_INLINE void matmul_float_cols(const uint8_t* weights, size_t row_bytes, size_t k, int rows,
                                      const float* x, float* out, size_t out_stride) {
  constexpr int kFit = kFloatAccumulators / kCols;
  constexpr int kRows = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  int r = 0;
  for (; r + kRows <= rows; r += kRows) {
    matmul_float_tile<Load, kRows, kCols>(weights + static_cast<size_t>(r) * row_bytes, row_bytes,
                                          k, x, out + r, out_stride);
  }
  if constexpr (kRows > 1) {
    for (; r < rows; ++r) {
      matmul_float_tile<Load, 1, kCols>(weights + static_cast<size_t>(r) * row_bytes, row_bytes, k,
                                        x, out + r, out_stride);
    }
  }
}

// Finds the tile of `cols` <= kFloatTileCols columns.
template <class Load, int kCols = 1>
void matmul_float(const uint8_t* weights, size_t row_bytes, size_t k, int rows, const float* x,
                  int cols, float* out, size_t out_stride) {
  if constexpr (kCols < kFloatTileCols) {
    if (cols > kCols) {
      return matmul_float<Load, kCols + 1>(weights, row_bytes, k, rows, x, cols, out, out_stride);
    }
  }
  matmul_float_cols<Load, kCols>(weights, row_bytes, k, rows, x, out, out_stride);
}
