#include "backend/cuda/device_weight.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cuda/block_decode.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// Bytes of host memory that repacking uses at a time.
constexpr std::size_t kStageBytes = std::size_t{8} << 20;

// `bytes` bytes of row `row` of the field that starts at `field`.
template <typename T>
void put(std::uint8_t* field, std::size_t row, const T& value) {
  std::memcpy(field + row * sizeof(T), &value, sizeof(T));
}

std::uint32_t quad(const std::uint8_t* values, int q) {
  std::uint32_t word;
  std::memcpy(&word, values + 4 * q, sizeof(word));
  return word;
}

// The planes of one row; returns the end of the plane's field.
std::uint8_t* put_nibbles(const std::uint8_t* values, std::size_t row, std::uint8_t* field) {
  std::uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = (quad(values, i) & 0x0f0f0f0fu) | (quad(values, i + 4) & 0x0f0f0f0fu) << 4;
  }
  put(field, row, words);
  return field + kGroupRows * sizeof(words);
}
void put_bits(const std::uint8_t* values, int bit, std::size_t row, std::uint8_t* field) {
  std::uint32_t word = 0;
  for (int q = 0; q < 8; ++q) word |= ((quad(values, q) >> bit) & 0x01010101u) << q;
  put(field, row, word);
}
std::uint8_t* put_pairs(const std::uint8_t* values, int bit, std::size_t row, std::uint8_t* field) {
  std::uint32_t words[2] = {0, 0};
  for (int q = 0; q < 8; ++q) {
    words[q / 4] |= ((quad(values, q) >> bit) & 0x03030303u) << (2 * (q % 4));
  }
  put(field, row, words);
  return field + kGroupRows * sizeof(words);
}

// Values 0..15 of the rows in the first 512 bytes, the others in the next: each lane's half block
// is one 16-byte read.
void put_bytes(const std::uint8_t* values, std::size_t row, std::uint8_t* field) {
  std::memcpy(field + 16 * row, values, 16);
  std::memcpy(field + 16 * kGroupRows + 16 * row, values + 16, 16);
}

void put_planes(Planes planes, const std::uint8_t* values, std::size_t row, std::uint8_t* out) {
  switch (planes) {
    case Planes::kNibbles:
      put_nibbles(values, row, out);
      return;
    case Planes::kNibblesAndBits:
      put_bits(values, 4, row, put_nibbles(values, row, out));
      return;
    case Planes::kNibblesAndPairs:
      put_pairs(values, 4, row, put_nibbles(values, row, out));
      return;
    case Planes::kPairs:
      put_pairs(values, 0, row, out);
      return;
    case Planes::kPairsAndBits:
      put_bits(values, 2, row, put_pairs(values, 0, row, out));
      return;
    case Planes::kBytes:
      put_bytes(values, row, out);
      return;
  }
}

void put_scales(Scales scales, const DecodedBlock& block, std::size_t row, std::uint8_t* out) {
  if (header_bytes(scales) == 0 && scales != Scales::kPowerD) {
    put(out, row, block.header[0]);
    if (scales == Scales::kDAndM) put(out + 2 * kGroupRows, row, block.header[1]);
    return;
  }
  if (scales == Scales::kSuperAndMin) {
    put(out, row, static_cast<std::uint8_t>((block.scales[0] & 15) | (block.scales[1] & 15) << 4));
    return;
  }
  put(out, row, block.scales[0]);
  if (scale_bytes(scales) == 2) put(out + kGroupRows, row, block.scales[1]);
}

// The two top bits of the scale and of the minimum of block `sub` of a superblock.
void put_high_bits(const DecodedBlock& block, std::size_t sub, std::size_t row,
                   std::uint8_t* header) {
  const int bits = block.scales[0] >> 4 | block.scales[1] >> 4 << 2;
  std::uint8_t& byte = header[(4 + sub / 2) * kGroupRows + row];
  byte = static_cast<std::uint8_t>(byte | bits << (4 * (sub % 2)));
}

void put_header(Scales scales, const DecodedBlock& block, std::size_t row, std::uint8_t* out) {
  put(out, row, block.header[0]);
  if (header_bytes(scales) >= 4) put(out + 2 * kGroupRows, row, block.header[1]);
}

std::size_t align_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// Sizes in bytes of what one group of rows takes of the three regions.
struct GroupSizes {
  GroupSizes(const TypeLayout& layout, std::size_t blocks)
      : plane(static_cast<std::size_t>(plane_bytes(layout.planes)) * kGroupRows),
        scale(static_cast<std::size_t>(scale_bytes(layout.scales)) * kGroupRows),
        header(static_cast<std::size_t>(header_bytes(layout.scales)) * kGroupRows),
        planes(blocks * plane),
        scales(blocks * scale),
        headers(header == 0 ? 0 : blocks / static_cast<std::size_t>(layout.sub_blocks) * header) {}

  std::size_t plane, scale, header;     // of one block, of one superblock
  std::size_t planes, scales, headers;  // of the group
};

// Some groups' parts of the regions, on the host.
struct StagedGroups {
  StagedGroups(const GroupSizes& sizes, std::size_t groups)
      : planes(groups * sizes.planes),
        scales(groups * sizes.scales),
        headers(groups * sizes.headers) {}

  // Row `row` of the first group on; `source`: its blocks in the file.
  void put_row(DType dtype, const GroupSizes& sizes, std::size_t row, std::size_t blocks,
               const std::byte* source) {
    const TypeLayout layout = type_layout(dtype);
    const auto sub_blocks = static_cast<std::size_t>(layout.sub_blocks);
    const std::size_t group = row / kGroupRows, lane = row % kGroupRows;
    std::uint8_t* plane = planes.data() + group * sizes.planes;
    std::uint8_t* scale = scales.data() + group * sizes.scales;
    std::uint8_t* header = headers.data() + group * sizes.headers;
    for (std::size_t b = 0; b < blocks; ++b, plane += sizes.plane, scale += sizes.scale) {
      DecodedBlock block;
      decode_block(dtype, source, b % sub_blocks, &block);
      put_planes(layout.planes, block.values, lane, plane);
      put_scales(layout.scales, block, lane, scale);
      if (layout.scales == Scales::kSuperAndMin) put_high_bits(block, b % sub_blocks, lane, header);
      if (b % sub_blocks + 1 < sub_blocks) continue;
      if (sizes.header > 0) put_header(layout.scales, block, lane, header);
      header += sizes.header;
      source += dtype_info(dtype).block_bytes;
    }
  }

  std::vector<std::uint8_t> planes, scales, headers;
};

}  // namespace

DeviceWeight::DeviceWeight(const TensorView& source, WeightUse use)
    : dtype_(source.dtype),
      use_(use),
      matrices_(source.matrices()),
      rows_(source.rows() / matrices_),
      cols_(source.cols()),
      row_bytes_(row_bytes(source.dtype, source.cols())) {
  SPECDEC_CHECK(source.bytes == source.rows() * row_bytes_, "tensor ", source.name, " of ",
                source.bytes, " bytes");
  if (is_quantized(dtype_)) {
    pack_quantized(source.data);
  } else {
    pack_floats(source.data);
  }
}

void DeviceWeight::reserve(std::size_t bytes) {
  if (use_ == WeightUse::kLookup) {
    host_ = PinnedMemory(bytes);
  } else {
    memory_ = DeviceMemory(bytes);
  }
}

void DeviceWeight::write(std::size_t at, const std::vector<std::uint8_t>& bytes) {
  if (bytes.empty()) return;
  if (use_ == WeightUse::kLookup) {
    std::memcpy(host_.data() + at, bytes.data(), bytes.size());
  } else {
    copy_to_device(memory_.as<std::uint8_t>() + at, bytes.data(), bytes.size());
  }
}

const std::uint8_t* DeviceWeight::base() const {
  return use_ == WeightUse::kLookup ? reinterpret_cast<const std::uint8_t*>(host_.data())
                                    : memory_.as<std::uint8_t>();
}

void DeviceWeight::pack_quantized(const std::byte* source) {
  const std::size_t blocks = cols_ / kBlockValues, groups = (rows_ + kGroupRows - 1) / kGroupRows;
  const GroupSizes sizes(type_layout(dtype_), blocks);
  scales_at_ = align_up(groups * sizes.planes);
  headers_at_ = align_up(scales_at_ + groups * sizes.scales);
  stride_ = align_up(headers_at_ + groups * sizes.headers);
  reserve(matrices_ * stride_);
  const std::size_t at_once = std::max<std::size_t>(1, kStageBytes / sizes.planes);
  for (std::size_t matrix = 0; matrix < matrices_; ++matrix, source += rows_ * row_bytes_) {
    const std::size_t at = matrix * stride_;
    for (std::size_t first = 0; first < groups; first += at_once) {
      const std::size_t count = std::min(at_once, groups - first);
      StagedGroups staged(sizes, count);
      const std::size_t first_row = first * kGroupRows;
      const std::size_t rows = std::min(count * kGroupRows, rows_ - first_row);
      for (std::size_t row = 0; row < rows; ++row) {
        staged.put_row(dtype_, sizes, row, blocks, source + (first_row + row) * row_bytes_);
      }
      write(at + first * sizes.planes, staged.planes);
      write(at + scales_at_ + first * sizes.scales, staged.scales);
      write(at + headers_at_ + first * sizes.headers, staged.headers);
    }
  }
}

// A row of the file in the order of FloatView.
void DeviceWeight::arrange_row(const std::byte* row, std::uint8_t* out) const {
  const std::size_t value_bytes = dtype_info(dtype_).block_bytes;
  const auto per_lane = static_cast<std::size_t>(values_per_lane(value_bytes));
  const std::size_t run_values = kVirtualLanes * per_lane;
  for (std::size_t k = 0; k < cols_; ++k) {
    const std::size_t run = k / run_values, lane = k % kVirtualLanes;
    const std::size_t step = k % run_values / kVirtualLanes;
    const std::size_t to = run * run_values + lane * per_lane + step;
    std::memcpy(out + to * value_bytes, row + k * value_bytes, value_bytes);
  }
}

void DeviceWeight::pack_floats(const std::byte* source) {
  const int per_lane = values_per_lane(dtype_info(dtype_).block_bytes);
  // 16 bytes of each lane
  const auto packed_row =
      static_cast<std::size_t>(runs_of(static_cast<int>(cols_), per_lane) * kVirtualLanes * 16);
  const std::size_t padded = (rows_ + kFloatRows - 1) / kFloatRows * kFloatRows;
  stride_ = padded * packed_row;
  reserve(matrices_ * stride_);
  const std::size_t at_once = std::max<std::size_t>(1, kStageBytes / packed_row);
  for (std::size_t matrix = 0; matrix < matrices_; ++matrix, source += rows_ * row_bytes_) {
    for (std::size_t first = 0; first < padded; first += at_once) {
      const std::size_t count = std::min(at_once, padded - first);
      std::vector<std::uint8_t> staged(count * packed_row);
      for (std::size_t i = 0; i < count && first + i < rows_; ++i) {
        arrange_row(source + (first + i) * row_bytes_, staged.data() + i * packed_row);
      }
      write(matrix * stride_ + first * packed_row, staged);
    }
  }
}

QuantizedView DeviceWeight::quantized() const {
  return {base(),
          base() + scales_at_,
          base() + headers_at_,
          static_cast<int>(rows_),
          static_cast<int>(cols_ / kBlockValues),
          stride_};
}

FloatView DeviceWeight::floats() const {
  return {base(), static_cast<int>(rows_), static_cast<int>(cols_), stride_};
}

}  // namespace specdec::cuda
