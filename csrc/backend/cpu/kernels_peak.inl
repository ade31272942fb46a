// The arithmetic limit that the bench compares products with: part of kernels.inl.

// Columns at once. Levels that sum in two steps keep two registers per dot product, so half as
// many products fit.
constexpr int kPeakCols =
    sizeof(DotSum<4>) == sizeof(LaneI) || kTileCols < 2 ? kTileCols : kTileCols / 2;

// One quad after the other of 4-bit weights that need no decoding.
template <int kQuad = 0>
SPECDEC_INLINE void peak_quads(const uint8_t* planes, const ActBlock* act,
                               DotSum<4> (*dots)[kVecs]) {
  if constexpr (kQuad < 8) {
    // The compiler must not know that the operands are those of the last block; nor may it begin
    // all quads at once, for which there are not enough registers.
    __asm__ volatile("" ::: "memory");
    LaneB w[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) w[v] = bytes_load(planes + 4 * kLanes * (kVecs * kQuad + v));
#pragma GCC unroll 8
    for (int c = 0; c < kPeakCols; ++c) {
      const LaneX x = bytes_broadcast(act[c].q + 4 * kQuad);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) {
        dots[c][v].template add<kQuad, kQuad == 0, kQuad == 7>(w[v], x);
      }
    }
    peak_quads<kQuad + 1>(planes, act, dots);
  }
}

inline uint64_t int8_peak(const uint8_t* planes, const ActBlock* act, size_t blocks, float* sink) {
  DotSum<4> dots[kPeakCols][kVecs];
#pragma GCC unroll 8
  for (int c = 0; c < kPeakCols; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) dots[c][v].begin(c * kVecs + v);
  }
  for (size_t block = 0; block < blocks; ++block) peak_quads(planes, act, dots);
#pragma GCC unroll 8
  for (int c = 0; c < kPeakCols; ++c) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      lane_store(sink + (c * kVecs + v) * kLanes, lane_to_float(dots[c][v].total()), kLanes);
    }
  }
  return static_cast<uint64_t>(blocks) * kActBlockSize * kLanes * kVecs * kPeakCols;
}
