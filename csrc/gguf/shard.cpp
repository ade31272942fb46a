#include "gguf/shard.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "core/error.h"
#include "core/printable.h"
#include "gguf/cursor.h"

namespace specdec {
namespace {

using gguf::Cursor;
using gguf::Field;
using gguf::kDamaged;

constexpr std::uint32_t kMaxDims = 4;
constexpr std::size_t kMaxTensorNameBytes = 65535;
// Length of a name (8), its shortest text (1), dimensions (4), type (4) and offset (8).
constexpr std::size_t kMinTensorEntryBytes = 25;
// Key length (8), shortest key (1), type (4), smallest value (1).
constexpr std::size_t kMinMetadataEntryBytes = 14;
// A larger one would only waste the file; real files use 32 to 64 Ki.
constexpr std::uint64_t kMaxAlignment = std::uint64_t{1} << 30;

// a * b, or nullopt where the product does not fit.
std::optional<std::size_t> checked_mul(std::size_t a, std::size_t b) {
  if (b != 0 && a > std::numeric_limits<std::size_t>::max() / b) return std::nullopt;
  return a * b;
}

void check_magic(const Cursor& cursor, std::size_t size) {
  const Field field = {"magic"};
  const std::string_view magic(reinterpret_cast<const char*>(cursor.begin()),
                               std::min<std::size_t>(size, 4));
  if (magic == "GGUF") return;
  if (magic == "FUGG") {
    cursor.fail(0, field, "this is a big-endian GGUF file: get the little-endian version");
  }
  if (magic == "lmgg" || magic == "fmgg" || magic == "tjgg" || magic == "algg") {
    cursor.fail(0, field, "this is a model in the GGML format that came before GGUF: get a GGUF");
  }
  cursor.fail(0, field,
              str("expected 'GGUF', found ", quoted(magic),
                  ": this is not a GGUF file, or its download went wrong"));
}

}  // namespace

std::size_t plain_type_bytes(std::uint32_t type_number) {
  switch (type_number) {
    case 24:  // I8
      return 1;
    case 25:  // I16
      return 2;
    case 26:  // I32
      return 4;
    case 27:  // I64
    case 28:  // F64
      return 8;
    default:
      return 0;
  }
}

std::string_view gguf_type_name(std::uint32_t type_number) {
  if (const std::optional<DType> dtype = dtype_from_gguf(type_number)) {
    return dtype_info(*dtype).name;
  }
  switch (type_number) {
    case 4:
      return "Q4_2";
    case 5:
      return "Q4_3";
    case 9:
      return "Q8_1";
    case 15:
      return "Q8_K";
    case 24:
      return "I8";
    case 25:
      return "I16";
    case 26:
      return "I32";
    case 27:
      return "I64";
    case 28:
      return "F64";
    case 31:
      return "Q4_0_4_4";
    case 32:
      return "Q4_0_4_8";
    case 33:
      return "Q4_0_8_8";
    case 34:
      return "TQ1_0";
    case 35:
      return "TQ2_0";
    case 40:
      return "NVFP4";
    default:
      return "unknown";
  }
}

std::optional<std::uint32_t> gguf_type_number(std::string_view name) {
  constexpr std::uint32_t kMost = 64;
  for (std::uint32_t number = 0; number < kMost; ++number) {
    const bool writable = dtype_from_gguf(number) || plain_type_bytes(number) > 0;
    if (writable && gguf_type_name(number) == name) return number;
  }
  return std::nullopt;
}

GgufShard::GgufShard(const std::string& path) : file_(path) {
  Cursor cursor(file_.data(), file_.size(), file_.path());
  read_header(cursor);
  metadata_.parse(cursor, metadata_count_, file_.path());
  read_alignment();
  // Again, now that the metadata is behind us: fewer bytes are left.
  cursor.require_count(tensor_count_, kMinTensorEntryBytes, 8, {"tensor count"});
  std::unordered_set<std::string> names;
  for (std::uint64_t i = 0; i < tensor_count_; ++i) {
    TensorInfo info = read_tensor_info(cursor);
    if (!names.insert(info.name).second) {
      cursor.fail(info.entry_offset, {"tensor", info.name},
                  "it appears twice: the file is damaged or was edited wrongly");
    }
    tensors_.push_back(std::move(info));
  }
  place_tensors(cursor);
  check_overlaps(cursor);
  check_end(cursor);
}

void GgufShard::read_header(Cursor& cursor) {
  check_magic(cursor, file_.size());
  cursor.skip(4, {"magic"});
  const Field version_field = {"version"};
  version_ = cursor.read<std::uint32_t>(version_field);
  if (version_ != 0 && (version_ & 0xFFFFu) == 0) {
    cursor.fail(4, version_field, "this is a big-endian GGUF file: get the little-endian version");
  }
  if (version_ != 2 && version_ != 3) {
    cursor.fail(4, version_field,
                str("GGUF version ", version_,
                    " is not supported (2 and 3 are): get a newer conversion of "
                    "this model, or a newer version of this library"));
  }
  tensor_count_ = cursor.read<std::uint64_t>({"tensor count"});
  metadata_count_ = cursor.read<std::uint64_t>({"metadata count"});
  cursor.require_count(tensor_count_, kMinTensorEntryBytes, 8, {"tensor count"});
  cursor.require_count(metadata_count_, kMinMetadataEntryBytes, 16, {"metadata count"});
}

void GgufShard::read_alignment() {
  const auto value = metadata_.find_uint("general.alignment", kMaxAlignment);
  if (!value) return;
  if (!std::has_single_bit(*value)) {
    throw GgufError(str(printable(path()), ": byte ", metadata_.find("general.alignment")->offset,
                        ": metadata key 'general.alignment' is ", *value,
                        ", but a power of two is expected; ", kDamaged));
  }
  alignment_ = static_cast<std::size_t>(*value);
}

TensorInfo GgufShard::read_tensor_info(Cursor& cursor) {
  TensorInfo info;
  info.entry_offset = cursor.position();
  const std::string_view name = cursor.read_string({"name of a tensor"});
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    cursor.fail(info.entry_offset, {"name of tensor", name},
                str("a name has 1 to ", kMaxTensorNameBytes, " bytes, this one has ", name.size(),
                    "; ", kDamaged));
  }
  info.name = std::string(name);
  read_tensor_shape(cursor, info);

  const std::size_t type_offset = cursor.position();
  info.type_number = cursor.read<std::uint32_t>({"type of tensor", name});
  info.dtype = dtype_from_gguf(info.type_number);
  const std::size_t offset_position = cursor.position();
  const auto offset = cursor.read<std::uint64_t>({"data offset of tensor", name});
  if (offset > file_.size()) {
    cursor.fail(
        offset_position, {"data offset of tensor", name},
        str("it is ", offset, ", but the file has only ", file_.size(), " bytes; ", kDamaged));
  }
  info.data_offset = static_cast<std::size_t>(offset);  // place_tensors adds the section's start
  if (const std::size_t width = plain_type_bytes(info.type_number)) {
    info.bytes =
        checked_mul(info.elements, width).value_or(std::numeric_limits<std::size_t>::max());
  }
  if (!info.dtype) return info;

  const DTypeInfo& type = dtype_info(*info.dtype);
  const std::size_t cols = info.shape.empty() ? 1 : info.shape.back();
  if (cols % type.block_size != 0) {
    cursor.fail(type_offset, {"type of tensor", name},
                str("rows of ", cols, " values cannot be ", type.name, ", whose blocks hold ",
                    type.block_size, "; ", kDamaged));
  }
  const auto bytes = checked_mul(info.elements / type.block_size, type.block_bytes);
  if (!bytes) {
    cursor.fail(type_offset, {"size of tensor", name},
                str(info.elements, " values of ", type.name, " overflow; ", kDamaged));
  }
  info.bytes = *bytes;
  return info;
}

void GgufShard::read_tensor_shape(Cursor& cursor, TensorInfo& info) const {
  const std::size_t dims_offset = cursor.position();
  const Field dims_field = {"number of dimensions of tensor", info.name};
  const auto dims = cursor.read<std::uint32_t>(dims_field);
  if (dims > kMaxDims) {
    cursor.fail(dims_offset, dims_field,
                str("it is ", dims, ", but at most ", kMaxDims, " are allowed; ", kDamaged));
  }
  for (std::uint32_t i = 0; i < dims; ++i) {
    const std::size_t offset = cursor.position();
    const Field field = {"dimension of tensor", info.name};
    const auto length = cursor.read<std::uint64_t>(field);
    if (length == 0) {
      cursor.fail(offset, field, str("dimension ", i, " is 0; ", kDamaged));
    }
    const auto elements = length > std::numeric_limits<std::size_t>::max()
                              ? std::nullopt
                              : checked_mul(info.elements, static_cast<std::size_t>(length));
    if (!elements) {
      cursor.fail(offset, field,
                  str("dimension ", i, " is ", length,
                      ", which makes the number of elements overflow; ", kDamaged));
    }
    info.elements = *elements;
    info.shape.push_back(static_cast<std::size_t>(length));
  }
  std::reverse(info.shape.begin(), info.shape.end());
}

// Turns offsets into the data section into offsets in the file, and checks every extent.
void GgufShard::place_tensors(const Cursor& cursor) {
  const std::size_t directory_end = cursor.position();
  // Cannot overflow: both are far below half of the address space (checked at opening).
  const std::size_t start = (directory_end + alignment_ - 1) / alignment_ * alignment_;
  for (TensorInfo& info : tensors_) {
    const Field field = {"data of tensor", info.name};
    if (info.data_offset % alignment_ != 0) {
      cursor.fail(info.entry_offset, field,
                  str("its offset ", info.data_offset, " is no multiple of the alignment ",
                      alignment_, "; ", kDamaged));
    }
    const std::size_t available = file_.size() > start ? file_.size() - start : 0;
    if (info.data_offset > available || info.bytes > available - info.data_offset) {
      cursor.fail(info.entry_offset, field,
                  str("its ", info.bytes, " bytes at offset ", info.data_offset,
                      " of the data section (which starts at byte ", start,
                      ") reach beyond the end of the file at byte ", file_.size(), "; ", kDamaged));
    }
    info.data_offset += start;
  }
}

// No tool writes overlapping tensors; a file that has them could make a loader allocate many times
// its own size.
void GgufShard::check_overlaps(const Cursor& cursor) const {
  std::vector<const TensorInfo*> order;
  for (const TensorInfo& info : tensors_) {
    if (info.bytes > 0) order.push_back(&info);
  }
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->data_offset < b->data_offset;
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = *order[i - 1];
    const TensorInfo& info = *order[i];
    if (info.data_offset - before.data_offset < before.bytes) {
      cursor.fail(info.entry_offset, {"data of tensor", info.name},
                  str("it overlaps that of tensor ", quoted(before.name), "; ", kDamaged));
    }
  }
}

// Files of a split model that were joined byte by byte: the header of the next one follows the data
// of the first, whose directory knows nothing of it.
void GgufShard::check_end(const Cursor& cursor) const {
  std::size_t end = cursor.position();
  for (const TensorInfo& info : tensors_) {
    if (info.bytes == 0) return;  // of unknown size
    end = std::max(end, info.data_offset + info.bytes);
  }
  for (const std::size_t next : {end, (end + alignment_ - 1) / alignment_ * alignment_}) {
    if (next > file_.size() || file_.size() - next < 4) continue;
    if (std::memcmp(file_.data() + next, "GGUF", 4) != 0) continue;
    cursor.fail(next, {"end of the tensors"},
                "another GGUF file follows: the parts of a split model were joined into one file, "
                "which cannot be read; keep the parts as they are and open any of them, or merge "
                "them with gguf-split --merge");
  }
}

}  // namespace specdec
