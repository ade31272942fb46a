// Attention over the cache, and the gathering of kept rows. Logical positions are processed in chunks of
// kAttentionChunk from 0 and the chunks merged in order, so a row's result depends neither on the split of the
// work nor on where a tree put its ancestors.
#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

constexpr std::size_t kChunk = kAttentionChunk;
// Rows of one task: a task reads each chunk of the cache once for all of them.
constexpr std::size_t kTaskRows = 32;

// 0, 1, 2, ...: the places of consecutive positions.
struct Iota {
  std::int32_t v[kChunk];
};
constexpr Iota make_iota() {
  Iota iota{};
  for (std::size_t i = 0; i < kChunk; ++i) iota.v[i] = static_cast<std::int32_t>(i);
  return iota;
}
constexpr Iota kIota = make_iota();

// What the rows of one segment see beyond its cached prefix. For a chain: rows 0..i, nothing stored.
struct SegmentPaths {
  const std::int32_t* rows = nullptr;     // [segment rows, stride]: ancestors in depth order, then itself
  const std::int32_t* lengths = nullptr;  // [segment rows]
  std::size_t stride = 0;

  std::size_t length(std::size_t row) const {
    return lengths == nullptr ? row + 1 : static_cast<std::size_t>(lengths[row]);
  }
};

std::size_t chunks_of(std::size_t positions) { return (positions + kChunk - 1) / kChunk; }

// One unit of work: chunks [first_chunk, last_chunk) for some rows and all query heads of one kv head.
struct Task {
  const Segment* segment;
  const SegmentPaths* paths;
  std::int32_t kv_head;
  std::size_t first_row, last_row;  // of the segment
  std::size_t first_chunk, last_chunk;
};

// The keys and values of one chunk as floats: row i is cache row first + i.
struct Window {
  const float* keys = nullptr;
  const float* values = nullptr;
  std::size_t first = 0;
};

// Runs the tasks of one attention call. Results go to `out` if one task sees all chunks of its rows, else to
// partials [M, H, chunks, 2 + D], merged afterwards.
class CpuAttention {
 public:
  CpuAttention(const KernelTable& kernels, CpuWorkspace& ws, const Pass& pass, std::int32_t layer,
               const float* q, const AttentionShape& shape, float* out)
      : kernels_(kernels), ws_(ws), pass_(pass), layer_(layer), q_(q), shape_(shape), out_(out),
        dim_(static_cast<std::size_t>(shape.head_dim)),
        heads_(static_cast<std::size_t>(shape.heads)),
        group_(heads_ / static_cast<std::size_t>(shape.kv_heads)) {
    find_paths();
  }

  void run(ThreadPool& pool) {
    const std::size_t threads = static_cast<std::size_t>(pool.threads());
    std::size_t whole_tasks = 0;
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      whole_tasks += static_cast<std::size_t>(shape_.kv_heads) * row_blocks(pass_.segments[s]);
    }
    // With few rows and heads the chunks have to be shared out too, at the price of a merge.
    const bool split = threads > 1 && whole_tasks < 4 * threads && most_chunks_ > 1;
    const std::size_t wanted = split ? (4 * threads + whole_tasks - 1) / whole_tasks : 1;
    span_ = split ? std::max<std::size_t>(1, most_chunks_ / wanted) : most_chunks_;
    if (split) {
      partial_stride_ = 2 + dim_;
      const auto rows = static_cast<std::size_t>(pass_.rows);
      partials_ = ws_.get<float>(Scratch::kPartials, rows * heads_ * most_chunks_ * partial_stride_);
    }
    make_tasks();
    pool.parallel_for(tasks_.size(), [&](std::size_t i, int slot) { run_task(tasks_[i], slot); });
    if (split) merge(pool);
  }

 private:
  static std::size_t row_blocks(const Segment& segment) {
    return (static_cast<std::size_t>(segment.rows) + kTaskRows - 1) / kTaskRows;
  }

  void find_paths() {
    std::size_t cells = 0, rows = 0;
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const auto n = static_cast<std::size_t>(pass_.segments[s].rows);
      if (pass_.segments[s].is_chain) continue;
      cells += n * n;
      rows += n;
    }
    std::int32_t* cell = ws_.get<std::int32_t>(Scratch::kPaths, cells);
    std::int32_t* length = ws_.get<std::int32_t>(Scratch::kPathLengths, rows);
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const Segment& segment = pass_.segments[s];
      const auto n = static_cast<std::size_t>(segment.rows);
      SegmentPaths paths;
      if (!segment.is_chain) {
        paths = {cell, length, n};
        fill_paths(segment, cell, length);
        cell += n * n;
        length += n;
      }
      for (std::size_t row = 0; row < n; ++row) {
        const std::size_t positions = static_cast<std::size_t>(segment.base) + paths.length(row);
        most_chunks_ = std::max(most_chunks_, chunks_of(positions));
      }
      paths_.push_back(paths);
    }
  }

  static void fill_paths(const Segment& segment, std::int32_t* cells, std::int32_t* lengths) {
    const auto n = static_cast<std::size_t>(segment.rows);
    for (std::size_t row = 0; row < n; ++row) {
      const std::int32_t parent = segment.parents[row];
      SPECDEC_CHECK(parent >= -1 && parent < static_cast<std::int32_t>(row), "parent ", parent,
                    " of segment row ", row);
      std::size_t length = 0;
      if (parent >= 0) {
        const auto p = static_cast<std::size_t>(parent);
        length = static_cast<std::size_t>(lengths[p]);
        std::copy_n(cells + p * n, length, cells + row * n);
      }
      cells[row * n + length] = static_cast<std::int32_t>(row);
      lengths[row] = static_cast<std::int32_t>(length) + 1;
    }
  }

  void make_tasks() {
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const Segment& segment = pass_.segments[s];
      const SegmentPaths* paths = &paths_[static_cast<std::size_t>(s)];
      const auto rows = static_cast<std::size_t>(segment.rows);
      // The last rows have the most to do: first.
      for (std::size_t block = row_blocks(segment); block-- > 0;) {
        const std::size_t first = block * kTaskRows, last = std::min(first + kTaskRows, rows);
        std::size_t chunks = 0;
        for (std::size_t row = first; row < last; ++row) {
          chunks = std::max(chunks, chunks_of(static_cast<std::size_t>(segment.base) +
                                              paths->length(row)));
        }
        for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
          for (std::size_t c = 0; c < chunks; c += span_) {
            tasks_.push_back({&segment, paths, head, first, last, c, std::min(c + span_, chunks)});
          }
        }
      }
    }
  }

  // The chunk's part of the cache. Half floats are converted once for all rows and heads of the task.
  Window load_window(const Task& task, std::size_t chunk, float* buffer) const {
    const KvCacheView& cache = task.segment->cache;
    const auto base = static_cast<std::size_t>(task.segment->base);
    const std::byte* keys = cache.keys + cache.head_offset(layer_, task.kv_head);
    const std::byte* values = cache.values + cache.head_offset(layer_, task.kv_head);
    if (cache.dtype == DType::kF32) {
      return {reinterpret_cast<const float*>(keys), reinterpret_cast<const float*>(values), 0};
    }
    const bool tree = task.paths->lengths != nullptr;
    std::size_t first = chunk * kChunk, last = std::min(first + kChunk, base + task.last_row);
    if (tree && first + kChunk > base) {  // ancestors may lie anywhere in the segment
      first = std::min(first, base);
      last = base + task.last_row;
    }
    const std::size_t count = (last - first) * dim_;
    float* values_out = buffer + window_rows(task) * dim_;
    kernels_.load_f16(reinterpret_cast<const std::uint16_t*>(keys) + first * dim_, count, buffer);
    kernels_.load_f16(reinterpret_cast<const std::uint16_t*>(values) + first * dim_, count,
                      values_out);
    return {buffer, values_out, first};
  }

  static std::size_t window_rows(const Task& task) {
    return kChunk + (task.paths->lengths != nullptr ? task.last_row : 0);
  }

  void run_task(const Task& task, int slot) const {
    const std::size_t rows = task.last_row - task.first_row;
    const std::size_t window = 2 * window_rows(task) * dim_;
    const std::size_t padded_dim = (dim_ + 15) / 16 * 16;
    float* buffer = ws_.get_for_thread<float>(
        slot, window + kChunk + padded_dim + rows * group_ * sizeof(SoftmaxState) / sizeof(float));
    float* scores = buffer + window;
    float* acc = scores + kChunk;
    auto* states = reinterpret_cast<SoftmaxState*>(acc + padded_dim);  // [rows, group]
    for (std::size_t chunk = task.first_chunk; chunk < task.last_chunk; ++chunk) {
      const Window w = load_window(task, chunk, buffer);
      for (std::size_t i = 0; i < rows; ++i) {
        attend_row(task, chunk, w, task.first_row + i, scores, acc, states + i * group_);
      }
    }
    if (partials_ != nullptr) return;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t g = 0; g < group_; ++g) {
        float* result = out_ + query_offset(task, task.first_row + i, g);
        kernels_.divide(result, states[i * group_ + g].sum, dim_, result);
      }
    }
  }

  // Offset in q and out [M, H, D] of query head g of the task's kv head.
  std::size_t query_offset(const Task& task, std::size_t row, std::size_t g) const {
    const std::size_t m = static_cast<std::size_t>(task.segment->first_row) + row;
    return (m * heads_ + static_cast<std::size_t>(task.kv_head) * group_ + g) * dim_;
  }

  // One row's query heads over one chunk.
  void attend_row(const Task& task, std::size_t chunk, const Window& w, std::size_t row,
                  float* scores, float* acc, SoftmaxState* states) const {
    const auto base = static_cast<std::size_t>(task.segment->base);
    const std::size_t first = chunk * kChunk, length = base + task.paths->length(row);
    if (first >= length) return;
    const std::size_t count = std::min(kChunk, length - first);
    std::int32_t own_index[kChunk];
    const std::int32_t* index = kIota.v;
    const float *keys = w.keys, *values = w.values;
    if (task.paths->lengths != nullptr && first + count > base) {
      const std::int32_t* path = task.paths->rows + row * task.paths->stride;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t position = first + i;
        const std::size_t cache_row =
            position < base ? position : base + static_cast<std::size_t>(path[position - base]);
        own_index[i] = static_cast<std::int32_t>(cache_row - w.first);
      }
      index = own_index;
    } else {
      keys += (first - w.first) * dim_;
      values += (first - w.first) * dim_;
    }
    const int n = static_cast<int>(count);
    for (std::size_t g = 0; g < group_; ++g) {
      const std::size_t query = query_offset(task, row, g);
      kernels_.attention_scores(q_ + query, keys, index, n, dim_, shape_.scale, scores);
      const SoftmaxState state = kernels_.attention_softmax(scores, n);
      if (partials_ != nullptr) {
        float* partial = partials_ + (query / dim_ * most_chunks_ + chunk) * partial_stride_;
        partial[0] = state.max;
        partial[1] = state.sum;
        kernels_.attention_values(scores, values, index, n, dim_, partial + 2);
      } else if (chunk == 0) {
        states[g] = state;
        kernels_.attention_values(scores, values, index, n, dim_, out_ + query);
      } else {
        kernels_.attention_values(scores, values, index, n, dim_, acc);
        states[g] = kernels_.attention_merge(states[g], out_ + query, state, acc, dim_);
      }
    }
  }

  // Merges the chunks of every row and head in order: what attend_row does when it sees them all.
  void merge(ThreadPool& pool) {
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const Segment& segment = pass_.segments[s];
      const SegmentPaths& paths = paths_[static_cast<std::size_t>(s)];
      const auto rows = static_cast<std::size_t>(segment.rows);
      const auto base = static_cast<std::size_t>(segment.base);
      pool.parallel_for(rows, [&](std::size_t row, int) {
        const std::size_t chunks = chunks_of(base + paths.length(row));
        const std::size_t m = static_cast<std::size_t>(segment.first_row) + row;
        for (std::size_t head = 0; head < heads_; ++head) {
          const float* partial = partials_ + (m * heads_ + head) * most_chunks_ * partial_stride_;
          float* result = out_ + (m * heads_ + head) * dim_;
          SoftmaxState state{partial[0], partial[1]};
          std::copy_n(partial + 2, dim_, result);
          for (std::size_t chunk = 1; chunk < chunks; ++chunk) {
            partial += partial_stride_;
            state = kernels_.attention_merge(state, result, {partial[0], partial[1]}, partial + 2,
                                             dim_);
          }
          kernels_.divide(result, state.sum, dim_, result);
        }
      });
    }
  }

  const KernelTable& kernels_;
  CpuWorkspace& ws_;
  const Pass& pass_;
  std::int32_t layer_;
  const float* q_;
  const AttentionShape& shape_;
  float* out_;
  std::size_t dim_, heads_, group_;
  std::size_t most_chunks_ = 0, span_ = 1, partial_stride_ = 0;
  float* partials_ = nullptr;
  std::vector<SegmentPaths> paths_;
  std::vector<Task> tasks_;
};

}  // namespace

void CpuBackend::attention(Workspace& ws, const Pass& pass, std::int32_t layer, const float* q,
                           const AttentionShape& shape, float* out) const {
  if (pass.rows <= 0) return;
  CpuAttention(kernels_, as_cpu(ws), pass, layer, q, shape, out).run(*pool_);
}

void CpuBackend::keep_rows(Workspace&, const KvCacheView& cache, std::int32_t base,
                           const std::int32_t* rows, std::int32_t count) const {
  const std::size_t row_bytes = static_cast<std::size_t>(cache.head_dim) * cache.element_bytes();
  for (std::int32_t i = 0; i < count; ++i) {
    SPECDEC_CHECK(rows[i] >= i && base + rows[i] < cache.capacity && (i == 0 || rows[i] > rows[i - 1]),
                  "kept row ", rows[i], " at place ", i);
  }
  for (std::int32_t layer = 0; layer < cache.layers; ++layer) {
    for (std::int32_t head = 0; head < cache.kv_heads; ++head) {
      const std::size_t offset =
          cache.head_offset(layer, head) + static_cast<std::size_t>(base) * row_bytes;
      for (std::int32_t i = 0; i < count; ++i) {
        if (rows[i] == i) continue;
        // Rows ascend and are distinct, so a destination never lies above a source still to be read.
        const std::size_t to = offset + static_cast<std::size_t>(i) * row_bytes;
        const std::size_t from = offset + static_cast<std::size_t>(rows[i]) * row_bytes;
        std::memcpy(cache.keys + to, cache.keys + from, row_bytes);
        std::memcpy(cache.values + to, cache.values + from, row_bytes);
      }
    }
  }
}

}  // namespace specdec
