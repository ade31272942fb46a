// The blocks of a GGUF file taken apart for repacking: 32 integers at a time, and their scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/weight_layout.h"
#include "core/dtype.h"
#include "core/quant_blocks.h"

namespace specdec::cuda {

// What a type's integers and scales look like on the device.
struct TypeLayout {
  Planes planes;
  Scales scales;
  int sub_blocks;  // blocks of 32 in a block of the file: 1 or 8
};

// Is the type quantised (and so has a TypeLayout)?
bool is_quantized(DType dtype);
TypeLayout type_layout(DType dtype);

// One block of 32 of one row.
struct DecodedBlock {
  std::uint8_t values[kBlockValues];  // unsigned integers, codes of a codebook, or signed bytes
  HalfBits header[2];                 // d (or its bfloat16 bits); m or -dmin
  std::uint8_t scales[2];             // the bytes of Scales
};

// Block `sub` of the file's block at `source`.
void decode_block(DType dtype, const std::byte* source, std::size_t sub, DecodedBlock* out);

}  // namespace specdec::cuda
