#include "backend/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/codebook_blocks.h"
#include "core/error.h"
#include "core/mapped_file.h"
#include "core/quant_blocks.h"

namespace specdec {
namespace {

constexpr std::size_t kQuads = kActBlockSize / 4;
constexpr std::size_t kSubBlocks = kSuperBlock / kBlock;  // blocks of 32 in a superblock

// Bytes of the file that one task repacks.
constexpr std::size_t kPackBytes = 512 * 1024;

constexpr std::size_t kVectorRows = 16;  // rows of one 64-byte vector of a plane

// The 32 values of one block of 16 rows, as the unsigned integers that are stored.
struct BlockValues {
  std::uint8_t v[kVectorRows][kActBlockSize];
};

// --- Bit planes; see kernels_matmul.inl. Each writes the planes of one block and returns their
// end. ---

// The four bytes of a quad at once.
std::uint32_t load_quad(const std::uint8_t* values) {
  std::uint32_t quad;
  std::memcpy(&quad, values, sizeof(quad));
  return quad;
}

// Bits [kShift, kShift + kWidth) of 8 / kWidth quads to a byte: quad per * i + j of vector i... in
// ascending bits. kWidth 8: bytes, 2: pairs, 1: bits.
template <int kShift, int kWidth>
std::uint8_t* put_plane(const BlockValues& values, std::uint8_t* out) {
  constexpr std::size_t kPerVector = 8 / kWidth;
  constexpr std::uint32_t kMask = ((1u << kWidth) - 1u) * 0x01010101u;
  for (std::size_t first = 0; first < kQuads; first += kPerVector, out += 64) {
    for (std::size_t row = 0; row < kVectorRows; ++row) {
      std::uint32_t quad = 0;
      for (std::size_t i = 0; i < kPerVector; ++i) {
        const std::uint32_t field = (load_quad(values.v[row] + 4 * (first + i)) >> kShift) & kMask;
        quad |= field << (i * kWidth);
      }
      std::memcpy(out + 4 * row, &quad, sizeof(quad));
    }
  }
  return out;
}

// The low nibbles: quad v in the low, quad v + 4 in the high half of the bytes of vector v.
std::uint8_t* put_nibbles(const BlockValues& values, std::uint8_t* out) {
  constexpr std::uint32_t kMask = 0x0f0f0f0fu;
  for (std::size_t v = 0; v < 4; ++v, out += 64) {
    for (std::size_t row = 0; row < kVectorRows; ++row) {
      const std::uint8_t* x = values.v[row] + 4 * v;
      const std::uint32_t quad = (load_quad(x) & kMask) | ((load_quad(x + 16) & kMask) << 4);
      std::memcpy(out + 4 * row, &quad, sizeof(quad));
    }
  }
  return out;
}

// --- Decoding of the file's blocks into unsigned values. Each decodes 32 values to out [32].
// ---------------

void unpack_nibbles(const std::uint8_t* qs, std::uint8_t* out) {
  for (std::size_t i = 0; i < 16; ++i) {
    out[i] = qs[i] & 15;
    out[16 + i] = static_cast<std::uint8_t>(qs[i] >> 4);
  }
}

void add_fifth_bits(const std::uint8_t* qh, std::uint8_t* out) {
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<std::uint8_t>(out[i] | (((qh[i / 8] >> (i % 8)) & 1) << 4));
  }
}

// 32 fields of `mask` bits at `shift` of consecutive bytes.
void unpack_fields(const std::uint8_t* bytes, int shift, int mask, std::uint8_t* out) {
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<std::uint8_t>((bytes[i] >> shift) & mask);
  }
}

void merge_fields(const std::uint8_t* bytes, int shift, int mask, int to, std::uint8_t* out) {
  for (std::size_t i = 0; i < 32; ++i) {
    out[i] = static_cast<std::uint8_t>(out[i] | (((bytes[i] >> shift) & mask) << to));
  }
}

void unpack(const BlockQ4_0& b, std::size_t, std::uint8_t* out) { unpack_nibbles(b.qs, out); }
void unpack(const BlockQ4_1& b, std::size_t, std::uint8_t* out) { unpack_nibbles(b.qs, out); }
void unpack(const BlockQ5_0& b, std::size_t, std::uint8_t* out) {
  unpack_nibbles(b.qs, out);
  add_fifth_bits(b.qh, out);
}
void unpack(const BlockQ5_1& b, std::size_t, std::uint8_t* out) {
  unpack_nibbles(b.qs, out);
  add_fifth_bits(b.qh, out);
}
// Unsigned with zero point 128.
void unpack(const BlockQ8_0& b, std::size_t, std::uint8_t* out) {
  for (std::size_t i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(b.qs[i] + 128);
}
// `sub`: which 32 values of the superblock.
void unpack(const BlockQ2_K& b, std::size_t sub, std::uint8_t* out) {
  unpack_fields(b.qs + (sub / 4) * 32, static_cast<int>(sub % 4) * 2, 3, out);
}
void unpack(const BlockQ3_K& b, std::size_t sub, std::uint8_t* out) {
  unpack_fields(b.qs + (sub / 4) * 32, static_cast<int>(sub % 4) * 2, 3, out);
  merge_fields(b.hmask, static_cast<int>(sub), 1, 2, out);
}
void unpack(const BlockQ4_K& b, std::size_t sub, std::uint8_t* out) {
  unpack_fields(b.qs + (sub / 2) * 32, static_cast<int>(sub % 2) * 4, 15, out);
}
void unpack(const BlockQ5_K& b, std::size_t sub, std::uint8_t* out) {
  unpack_fields(b.qs + (sub / 2) * 32, static_cast<int>(sub % 2) * 4, 15, out);
  merge_fields(b.qh, static_cast<int>(sub), 1, 4, out);
}
// Each half of 128: blocks 0 and 1 are the low, 2 and 3 the high nibbles of 64 bytes.
void unpack(const BlockQ6_K& b, std::size_t sub, std::uint8_t* out) {
  const std::size_t half = sub / 4, part = sub % 4;
  unpack_fields(b.ql + half * 64 + (part % 2) * 32, part < 2 ? 0 : 4, 15, out);
  merge_fields(b.qh + half * 32, static_cast<int>(part) * 2, 3, 4, out);
}

// --- Scales of row `row` of a group: the header of its superblock, and the scales of block `sub`
// in it. -----

void put_half(std::uint8_t* out, std::size_t row, HalfBits value) {
  std::memcpy(out + 2 * row, &value, sizeof(value));
}

HalfBits negated(HalfBits value) { return static_cast<HalfBits>(value ^ 0x8000u); }

// The simple types have no header; d (and m) are the scales.
template <typename Block>
void put_header(const Block&, std::size_t, std::uint8_t*) {}
template <typename Block>
void put_scales(const Block& b, std::size_t, std::size_t row, std::uint8_t* out) {
  put_half(out, row, b.d);
  if constexpr (requires { b.m; }) put_half(out + 64, row, b.m);
}

// Superblocks with minima: d and -dmin.
template <typename Block>
void put_d_and_dmin(const Block& b, std::size_t row, std::uint8_t* out) {
  put_half(out, row, b.d);
  put_half(out + 64, row, negated(b.dmin));
}
void put_header(const BlockQ2_K& b, std::size_t row, std::uint8_t* out) {
  put_d_and_dmin(b, row, out);
}
void put_header(const BlockQ4_K& b, std::size_t row, std::uint8_t* out) {
  put_d_and_dmin(b, row, out);
}
void put_header(const BlockQ5_K& b, std::size_t row, std::uint8_t* out) {
  put_d_and_dmin(b, row, out);
}
void put_header(const BlockQ3_K& b, std::size_t row, std::uint8_t* out) { put_half(out, row, b.d); }
void put_header(const BlockQ6_K& b, std::size_t row, std::uint8_t* out) { put_half(out, row, b.d); }

void put_scales(const BlockQ2_K& b, std::size_t sub, std::size_t row, std::uint8_t* out) {
  out[row] = b.scales[2 * sub];
  out[32 + row] = b.scales[2 * sub + 1];
}
void put_scales(const BlockQ3_K& b, std::size_t sub, std::size_t row, std::uint8_t* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    const std::size_t j = 2 * sub + half;
    const int low = (b.scales[j % 8] >> (4 * (j / 8))) & 15;
    const int high = (b.scales[8 + j % 4] >> (2 * (j / 4))) & 3;
    out[32 * half + row] = static_cast<std::uint8_t>((low | (high << 4)) - 32);
  }
}
void put_scales(const BlockQ6_K& b, std::size_t sub, std::size_t row, std::uint8_t* out) {
  out[row] = static_cast<std::uint8_t>(b.scales[2 * sub]);
  out[32 + row] = static_cast<std::uint8_t>(b.scales[2 * sub + 1]);
}

// The 6-bit scales and minima of Q4_K and Q5_K: sub-blocks 0..3 in the low six bits of bytes 0..3
// and 4..7, sub-blocks 4..7 in the nibbles of bytes 8..11 and the top bits of the others.
void put_six_bit_scales(const std::uint8_t* scales, std::size_t sub, std::size_t row,
                        std::uint8_t* out) {
  const std::size_t k = sub % 4;
  const int low = scales[k], mid = scales[k + 4], high = scales[k + 8];
  const int scale = sub < 4 ? low & 63 : (high & 15) | ((low >> 2) & 48);
  const int min = sub < 4 ? mid & 63 : (high >> 4) | ((mid >> 2) & 48);
  out[row] = static_cast<std::uint8_t>(scale);
  out[32 + row] = static_cast<std::uint8_t>(min);
}
void put_scales(const BlockQ4_K& b, std::size_t sub, std::size_t row, std::uint8_t* out) {
  put_six_bit_scales(b.scales, sub, row, out);
}
void put_scales(const BlockQ5_K& b, std::size_t sub, std::size_t row, std::uint8_t* out) {
  put_six_bit_scales(b.scales, sub, row, out);
}

// --- The types with a codebook: codes in the planes; the scales of all blocks in the header.

template <HasCodebook Block>
void unpack(const Block& b, std::size_t sub, std::uint8_t* out) {
  codebook_codes(b, sub, out);
}
template <HasCodebook Block>
std::uint8_t scale_byte(const Block& b, std::size_t sub) {
  const int scale = codebook_scale(b, 2 * sub);
  if constexpr (!kScalesOf16<Block>) return static_cast<std::uint8_t>(scale);
  return static_cast<std::uint8_t>((scale / 2) | (codebook_scale(b, 2 * sub + 1) / 2) << 4);
}
template <HasCodebook Block>
void put_header(const Block& b, std::size_t row, std::uint8_t* out) {
  if constexpr (!kOneScale<Block>) {
    put_half(out, row, codebook_d(b));
    for (std::size_t sub = 0; sub < kSubBlocks; ++sub) {
      out[64 + 32 * sub + row] = scale_byte(b, sub);
    }
  }
}
template <HasCodebook Block>
void put_scales(const Block& b, std::size_t, std::size_t row, std::uint8_t* out) {
  if constexpr (std::is_same_v<Block, BlockMXFP4>) {
    put_half(out, row, mxfp4_d(b));
  } else if constexpr (kOneScale<Block>) {
    put_half(out, row, b.d);
  }
}

// Writes the planes of one block of 32.
void put_planes(PackedFormat format, const BlockValues& values, std::uint8_t* out) {
  switch (format) {
    case PackedFormat::kQ4_0:
    case PackedFormat::kQ4_1:
    case PackedFormat::kQ4_K:
    case PackedFormat::kIQ4_NL:
    case PackedFormat::kMXFP4:
    case PackedFormat::kIQ4_XS:
    case PackedFormat::kIQ3_XXS:
    case PackedFormat::kIQ3_S:
      put_nibbles(values, out);
      return;
    case PackedFormat::kQ5_0:
    case PackedFormat::kQ5_1:
    case PackedFormat::kQ5_K:
      put_plane<4, 1>(values, put_nibbles(values, out));
      return;
    case PackedFormat::kQ6_K:
      put_plane<4, 2>(values, put_nibbles(values, out));
      return;
    case PackedFormat::kQ8_0:
      put_plane<0, 8>(values, out);
      return;
    case PackedFormat::kQ2_K:
      put_plane<0, 2>(values, out);
      return;
    case PackedFormat::kQ3_K:
    case PackedFormat::kIQ2_XXS:
    case PackedFormat::kIQ2_XS:
    case PackedFormat::kIQ1_S:
    case PackedFormat::kIQ1_M:
      put_plane<2, 1>(values, put_plane<0, 2>(values, out));
      return;
    case PackedFormat::kCount:
      break;
  }
  throw InternalError("no such packed format");
}

// Packs `rows` <= 32 rows. src: rows of blocks, row_bytes apart; out: zeros if rows < 32.
template <typename Block>
void pack_rows(const std::byte* src, std::size_t row_bytes, std::size_t rows, std::size_t blocks,
               const PackedLayout& layout, std::uint8_t* out) {
  const std::size_t subs = layout.super_blocks;
  BlockValues values[2][kSubBlocks];  // [rows / 16]
  std::memset(values, 0, sizeof(values));
  for (std::size_t first = 0; first < blocks; first += subs) {
    std::uint8_t* header = out;
    out += layout.header_bytes;
    for (std::size_t row = 0; row < rows; ++row) {
      Block block;
      std::memcpy(&block, src + row * row_bytes + (first / subs) * sizeof(Block), sizeof(Block));
      put_header(block, row, header);
      for (std::size_t sub = 0; sub < subs; ++sub) {
        put_scales(block, sub, row, out + sub * layout.block_bytes());
        unpack(block, sub, values[row / kVectorRows][sub].v[row % kVectorRows]);
      }
    }
    for (std::size_t sub = 0; sub < subs; ++sub, out += layout.block_bytes()) {
      std::uint8_t* planes = out + layout.scale_bytes;
      put_planes(layout.format, values[0][sub], planes);
      put_planes(layout.format, values[1][sub], planes + layout.plane_bytes);
    }
  }
}

constexpr PackedLayout kLayouts[kPackedFormats] = {
    {PackedFormat::kQ4_0, 1, 0, 64, 256, {8, false, false}},
    {PackedFormat::kQ4_1, 1, 0, 128, 256, {0, false, true}},
    {PackedFormat::kQ5_0, 1, 0, 64, 320, {16, false, false}},
    {PackedFormat::kQ5_1, 1, 0, 128, 320, {0, false, true}},
    {PackedFormat::kQ8_0, 1, 0, 64, 512, {128, false, false}},
    {PackedFormat::kQ2_K, 8, 128, 64, 128, {0, true, true}},
    {PackedFormat::kQ3_K, 8, 64, 64, 192, {4, true, false}},
    {PackedFormat::kQ4_K, 8, 128, 64, 256, {0, false, true}},
    {PackedFormat::kQ5_K, 8, 128, 64, 320, {0, false, true}},
    {PackedFormat::kQ6_K, 8, 64, 64, 384, {32, true, false}},
    {PackedFormat::kIQ4_NL, 1, 0, 64, 256, {kCodebookIQ4.zero_point, false, false}},
    {PackedFormat::kMXFP4, 1, 0, 64, 256, {kCodebookMXFP4.zero_point, false, false}},
    {PackedFormat::kIQ4_XS, 8, 320, 0, 256, {kCodebookIQ4.zero_point, false, false}},
    {PackedFormat::kIQ3_XXS, 8, 320, 0, 256, {kCodebookIQ3_XXS.zero_point, false, false}},
    {PackedFormat::kIQ3_S, 8, 320, 0, 256, {kCodebookIQ3_S.zero_point, false, false}},
    {PackedFormat::kIQ2_XXS, 8, 320, 0, 192, {kCodebookIQ2.zero_point, false, false}},
    {PackedFormat::kIQ2_XS, 8, 320, 0, 192, {kCodebookIQ2.zero_point, true, false}},
    {PackedFormat::kIQ1_S, 8, 320, 0, 192, {kCodebookIQ1.zero_point, false, false}},
    {PackedFormat::kIQ1_M, 8, 320, 0, 192, {kCodebookIQ1.zero_point, true, false}},
};

const PackedLayout* layout_of(PackedFormat format) { return &kLayouts[static_cast<int>(format)]; }

}  // namespace

const PackedLayout* packed_layout(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return nullptr;
    case DType::kQ4_0:
      return layout_of(PackedFormat::kQ4_0);
    case DType::kQ4_1:
      return layout_of(PackedFormat::kQ4_1);
    case DType::kQ5_0:
      return layout_of(PackedFormat::kQ5_0);
    case DType::kQ5_1:
      return layout_of(PackedFormat::kQ5_1);
    case DType::kQ8_0:
      return layout_of(PackedFormat::kQ8_0);
    case DType::kQ2_K:
      return layout_of(PackedFormat::kQ2_K);
    case DType::kQ3_K:
      return layout_of(PackedFormat::kQ3_K);
    case DType::kQ4_K:
      return layout_of(PackedFormat::kQ4_K);
    case DType::kQ5_K:
      return layout_of(PackedFormat::kQ5_K);
    case DType::kQ6_K:
      return layout_of(PackedFormat::kQ6_K);
    case DType::kIQ4_NL:
      return layout_of(PackedFormat::kIQ4_NL);
    case DType::kMXFP4:
      return layout_of(PackedFormat::kMXFP4);
    case DType::kIQ4_XS:
      return layout_of(PackedFormat::kIQ4_XS);
    case DType::kIQ3_XXS:
      return layout_of(PackedFormat::kIQ3_XXS);
    case DType::kIQ3_S:
      return layout_of(PackedFormat::kIQ3_S);
    case DType::kIQ2_XXS:
      return layout_of(PackedFormat::kIQ2_XXS);
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return layout_of(PackedFormat::kIQ2_XS);
    case DType::kIQ1_S:
      return layout_of(PackedFormat::kIQ1_S);
    case DType::kIQ1_M:
      return layout_of(PackedFormat::kIQ1_M);
  }
  throw InternalError(str("unknown DType ", static_cast<std::uint32_t>(dtype)));
}

CpuWeight::CpuWeight(const TensorView& source, WeightUse use, Arena& arena, ThreadPool& pool)
    : dtype_(source.dtype),
      matrices_(source.matrices()),
      rows_(source.rows() / matrices_),
      cols_(source.cols()),
      row_bytes_(row_bytes(source.dtype, source.cols())),
      source_(source.data),
      layout_(use == WeightUse::kLookup ? nullptr : packed_layout(source.dtype)) {
  SPECDEC_CHECK(source.bytes >= row_bytes_ * source.rows(), source.name, " has ", source.bytes,
                " bytes for ", source.rows(), " rows of ", row_bytes_);
  if (layout_ == nullptr) return;
  group_bytes_ =
      blocks() / layout_->super_blocks * layout_->header_bytes + blocks() * layout_->block_bytes();
  packed_ = arena.allocate(matrices_ * groups() * group_bytes_);
  const std::size_t step = std::max<std::size_t>(1, kPackBytes / (kGroupRows * row_bytes_));
  const std::size_t tasks = (groups() + step - 1) / step;  // of one matrix
  pool.parallel_for(matrices_ * tasks, [&](std::size_t task, int) {
    const std::size_t matrix = task / tasks, first = task % tasks * step;
    const std::size_t last = std::min(first + step, groups());
    for (std::size_t group = first; group < last; ++group) pack_group(group, matrix);
    const std::size_t begin = first * kGroupRows, end = std::min(last * kGroupRows, rows_);
    const std::byte* done = source_row(matrix * rows_ + begin);
    if (source.mapped) release_mapped_pages(done, (end - begin) * row_bytes_);
  });
  // A task that reads beside a released chunk brings pages of it back, 2 MiB where the system maps
  // the file in huge pages.
  if (source.mapped) release_mapped_pages(source.data, row_bytes_ * source.rows());
}

void CpuWeight::pack_group(std::size_t group, std::size_t matrix) {
  const std::size_t first = group * kGroupRows;
  const std::size_t rows = std::min<std::size_t>(kGroupRows, rows_ - first);
  std::uint8_t* out = packed_.get() + (matrix * groups() + group) * group_bytes_;
  if (rows < kGroupRows) std::memset(out, 0, group_bytes_);
  const auto pack = [&](auto block) {
    pack_rows<decltype(block)>(source_row(matrix * rows_ + first), row_bytes_, rows, blocks(),
                               *layout_, out);
  };
  switch (dtype_) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
    case DType::kQ4_0:
      return pack(BlockQ4_0{});
    case DType::kQ4_1:
      return pack(BlockQ4_1{});
    case DType::kQ5_0:
      return pack(BlockQ5_0{});
    case DType::kQ5_1:
      return pack(BlockQ5_1{});
    case DType::kQ8_0:
      return pack(BlockQ8_0{});
    case DType::kQ2_K:
      return pack(BlockQ2_K{});
    case DType::kQ3_K:
      return pack(BlockQ3_K{});
    case DType::kQ4_K:
      return pack(BlockQ4_K{});
    case DType::kQ5_K:
      return pack(BlockQ5_K{});
    case DType::kQ6_K:
      return pack(BlockQ6_K{});
    case DType::kIQ4_NL:
      return pack(BlockIQ4_NL{});
    case DType::kMXFP4:
      return pack(BlockMXFP4{});
    case DType::kIQ4_XS:
      return pack(BlockIQ4_XS{});
    case DType::kIQ3_XXS:
      return pack(BlockIQ3_XXS{});
    case DType::kIQ3_S:
      return pack(BlockIQ3_S{});
    case DType::kIQ2_XXS:
      return pack(BlockIQ2_XXS{});
    case DType::kIQ2_XS:
      return pack(BlockIQ2_XS{});
    case DType::kIQ2_S:
      return pack(BlockIQ2_S{});
    case DType::kIQ1_S:
      return pack(BlockIQ1_S{});
    case DType::kIQ1_M:
      return pack(BlockIQ1_M{});
  }
  throw InternalError(str("no packed form of DType ", static_cast<std::uint32_t>(dtype_)));
}

}  // namespace specdec
