// In which pieces attention over the cache is summed: one copy for the backends that promise the
// same bits (README.md here). Part of the numerics: changing a number changes results.
#pragma once

namespace specdec {

// Logical positions of a chunk, counted from 0.
inline constexpr int kAttentionChunk = 64;
// Chunks of a span. Those of a span are merged in order, then the spans: what blocks of a device
// leave for each other in memory is one result per span. 4 would be too many of them: a pass of
// eight tokens behind 4,096 may move 5 % more than it needs (docs/cuda.md).
inline constexpr int kSpanChunks = 8;

}  // namespace specdec
