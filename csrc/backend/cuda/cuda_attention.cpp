// Attention over the cache and the gathering of kept rows: host side.
#include <algorithm>
#include <vector>

#include "backend/attention_rule.h"
#include "backend/cuda/cuda_backend.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

// Up to this many rows the chunks of a segment are shared out over blocks, at the price of a merge
// (no more: the partial results take rows * spans memory). Results do not depend on it.
constexpr int kSplitRows = 32;

// Chunks of a unit, which one block sees. Where a kv head has no more queries than one block takes,
// the results of single chunks are few bytes beside the cache, and give the device more to do at
// once; more queries leave the results of whole spans only.
int unit_chunks_for(int queries) { return queries <= kAttentionTile ? 1 : kSpanChunks; }

// Ancestors of each row in depth order, then itself, [rows, rows]; then their numbers, [rows].
std::vector<int> paths_of(const Segment& segment) {
  const auto n = static_cast<std::size_t>(segment.rows);
  std::vector<int> out(n * n + n, 0);
  int* lengths = out.data() + n * n;
  for (std::size_t row = 0; row < n; ++row) {
    const std::int32_t parent = segment.parents[row];
    SPECDEC_CHECK(parent >= -1 && parent < static_cast<std::int32_t>(row), "parent ", parent,
                  " of segment row ", row);
    int length = 0;
    if (parent >= 0) {
      length = lengths[parent];
      std::copy_n(out.data() + static_cast<std::size_t>(parent) * n, length, out.data() + row * n);
    }
    out[row * n + static_cast<std::size_t>(length)] = static_cast<int>(row);
    lengths[row] = length + 1;
  }
  return out;
}

// The least power of two that is not below.
int rounded_chunks(int chunks) {
  int rounded = 1;
  while (rounded < chunks) rounded *= 2;
  return rounded;
}

std::int64_t address(const void* pointer) { return reinterpret_cast<std::intptr_t>(pointer); }

}  // namespace

// One copy: of each segment its base, and of a tree the paths and their lengths.
void CudaBackend::begin_pass(Workspace& workspace, const Pass& pass) const {
  CudaWorkspace& ws = use(workspace);
  std::vector<int> host;
  std::vector<std::size_t> places;
  ws.segments.clear();
  ws.segments_key.clear();
  ws.recordable = pass.rows > 0 && pass.rows <= kSplitRows;
  for (std::int32_t i = 0; i < pass.segment_count; ++i) {
    const Segment& segment = pass.segments[i];
    places.push_back(host.size());
    host.push_back(segment.base);
    int longest = segment.rows;
    if (!segment.is_chain) {
      const std::vector<int> paths = paths_of(segment);
      const auto n = static_cast<std::ptrdiff_t>(segment.rows);
      longest = *std::max_element(paths.begin() + n * n, paths.end());
      host.insert(host.end(), paths.begin(), paths.end());
    }
    int chunks = (segment.base + longest + kAttentionChunk - 1) / kAttentionChunk;
    if (segment.rows <= kSplitRows) chunks = rounded_chunks(chunks);
    ws.segments.push_back({nullptr, nullptr, nullptr, chunks});
    ws.segments_key.insert(ws.segments_key.end(),
                           {segment.rows, segment.is_chain ? 1 : 0, chunks,
                            address(segment.cache.keys), address(segment.cache.values)});
  }
  int* device = ws.get<int>(Area::kPass, host.size());
  ws.send(device, host.data(), host.size() * sizeof(int));
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Segment& segment = pass.segments[i];
    const auto n = static_cast<std::size_t>(segment.rows);
    SegmentOnDevice& out = ws.segments[i];
    out.base = device + places[i];
    if (segment.is_chain) continue;
    out.paths = out.base + 1;
    out.lengths = out.paths + n * n;
  }
}

void CudaBackend::attention(Workspace& workspace, const Pass& pass, std::int32_t layer,
                            const float* q, const AttentionShape& shape, float* out) const {
  SPECDEC_CHECK(shape.head_dim <= kMaxHeadDim, "heads of ", shape.head_dim);
  CudaWorkspace& ws = use(workspace);
  ws.check_pass(pass);
  PreparedInput prepared;
  for (std::int32_t i = 0; i < pass.segment_count; ++i) {
    const Segment& segment = pass.segments[i];
    if (segment.rows <= 0) continue;
    const SegmentOnDevice& on_device = ws.segments[static_cast<std::size_t>(i)];
    const KvCacheView& cache = segment.cache;
    const std::size_t at = cache.head_offset(layer, 0);
    const auto vector = static_cast<std::size_t>(shape.heads * shape.head_dim);
    AttentionSegment s;
    s.dtype = cache.dtype;
    s.keys = reinterpret_cast<const std::uint8_t*>(cache.keys + at);
    s.values = reinterpret_cast<const std::uint8_t*>(cache.values + at);
    s.head_stride = static_cast<std::int64_t>(cache.head_offset(0, 1));
    s.row_bytes = static_cast<int>(cache.row_bytes());
    s.base_at = on_device.base;
    s.rows = segment.rows;
    s.q = q + static_cast<std::size_t>(segment.first_row) * vector;
    s.out = out + static_cast<std::size_t>(segment.first_row) * vector;
    s.heads = shape.heads;
    s.kv_heads = shape.kv_heads;
    s.head_dim = shape.head_dim;
    s.scale = shape.scale;
    s.window = shape.window;
    s.score_cap = shape.score_cap;
    s.sinks = shape.sinks;
    s.paths = on_device.paths;
    s.lengths = on_device.lengths;
    s.chunks = on_device.chunks;
    s.unit_chunks = unit_chunks_for(s.rows * (s.heads / s.kv_heads));
    s.units = (s.chunks + s.unit_chunks - 1) / s.unit_chunks;
    if (s.rows <= kSplitRows && s.units > 1) {
      s.partials = ws.get<float>(Area::kPartials, static_cast<std::size_t>(s.rows) *
                                                      static_cast<std::size_t>(s.heads * s.units) *
                                                      static_cast<std::size_t>(2 + s.head_dim));
    }
    // With one segment the merge can leave the input of the product that follows.
    if (s.partials != nullptr && segment.rows == pass.rows && s.head_dim % kBlockValues == 0) {
      s.quantized = ws.activations(s.rows, vector);
      prepared = {out, s.rows, s.quantized, uploads_};
    }
    queue_attention(ws.stream(), s);
  }
  ws.leave_prepared(prepared);
}

void CudaBackend::keep_rows(Workspace& workspace, const KvCacheView& cache, std::int32_t base,
                            const std::int32_t* rows, std::int32_t count) const {
  CudaWorkspace& ws = use(workspace);
  bool moved = false;
  for (std::int32_t i = 0; i < count; ++i) {
    SPECDEC_CHECK(
        rows[i] >= i && base + rows[i] < cache.capacity && (i == 0 || rows[i] > rows[i - 1]),
        "kept row ", rows[i], " at place ", i);
    moved = moved || rows[i] != i;
  }
  if (!moved) return;
  int* kept = ws.get<int>(Area::kKept, static_cast<std::size_t>(count));
  ws.send(kept, rows, static_cast<std::size_t>(count) * sizeof(int));
  queue_keep_rows(ws.stream(), cache.layers * cache.kv_heads,
                  static_cast<std::int64_t>(cache.head_offset(0, 1)),
                  static_cast<int>(cache.row_bytes()), reinterpret_cast<std::uint8_t*>(cache.keys),
                  reinterpret_cast<std::uint8_t*>(cache.values), base, kept, count);
}

}  // namespace specdec::cuda
