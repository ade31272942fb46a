// One function per block type: whole rows, src [n] finite; weights [n] as in block_row.h, or
// nullptr.
#pragma once

#include <cstddef>

namespace specdec::quantize {

void quantize_row_q4_0(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q4_1(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q5_0(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q5_1(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q8_0(const float* src, std::byte* dst, std::size_t n, const float* weights);

void quantize_row_q2_k(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q4_k(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q5_k(const float* src, std::byte* dst, std::size_t n, const float* weights);

void quantize_row_q3_k(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_q6_k(const float* src, std::byte* dst, std::size_t n, const float* weights);

// Blocks of 32, 256 and 32 values.
void quantize_row_iq4_nl(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_iq4_xs(const float* src, std::byte* dst, std::size_t n, const float* weights);
void quantize_row_mxfp4(const float* src, std::byte* dst, std::size_t n, const float* weights);

}  // namespace specdec::quantize
