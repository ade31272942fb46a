// The grids of the IQ types: which combinations of magnitudes a group of values may take. Entry i
// holds 8 fields of 2 bits (IQ2, IQ1) or 4 fields of 3 bits (IQ3), the first value lowest; a field
// is an index into the magnitudes of the type's codebook.
#pragma once

#include <cstdint>

namespace specdec {

extern const std::uint16_t kGridIQ2_XXS[256];
extern const std::uint16_t kGridIQ2_XS[512];
extern const std::uint16_t kGridIQ2_S[1024];
extern const std::uint16_t kGridIQ3_XXS[256];
extern const std::uint16_t kGridIQ3_S[512];
extern const std::uint16_t kGridIQ1[2048];  // IQ1_S and IQ1_M

}  // namespace specdec
