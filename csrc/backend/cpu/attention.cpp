// Attention over the cache. Logical positions are processed in chunks of kAttentionChunk from 0;
// the chunks of a span are merged in order, then the spans. So a row's result depends neither on
// the split of the work nor on where a tree put its ancestors.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

constexpr std::size_t kChunk = kAttentionChunk;
constexpr std::size_t kSpan = kSpanChunks;
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

// What the rows of one segment see beyond its cached prefix. For a chain: rows 0..i, nothing
// stored.
struct SegmentPaths {
  const std::int32_t* rows =
      nullptr;  // [segment rows, stride]: ancestors in depth order, then itself
  const std::int32_t* lengths = nullptr;  // [segment rows]
  std::size_t stride = 0;

  std::size_t length(std::size_t row) const {
    return lengths == nullptr ? row + 1 : static_cast<std::size_t>(lengths[row]);
  }
};

std::size_t ceil_div(std::size_t n, std::size_t by) { return (n + by - 1) / by; }
std::size_t chunks_of(std::size_t positions) { return ceil_div(positions, kChunk); }
// The chunk behind the last one of this chunk's piece, in pieces of `size` chunks from 0.
std::size_t piece_end(std::size_t chunk, std::size_t size) { return (chunk / size + 1) * size; }

// One unit of work: chunks [first_chunk, last_chunk) for some rows and all query heads of one kv
// head.
struct Task {
  const Segment* segment;
  const SegmentPaths* paths;
  std::int32_t kv_head;
  std::size_t first_row, last_row;  // of the segment
  std::size_t first_chunk, last_chunk;
};

// The keys and values of one chunk as floats, read from the cache once for all rows and heads of a
// task. Row i is cache row first + i.
struct Window {
  std::size_t first = 0, rows = 0;
  std::size_t stride = 0;         // rows rounded up to whole vectors
  float* keys = nullptr;          // [D, stride], transposed
  const float* values = nullptr;  // [rows, D]
};

// The positions of a chunk that one row sees: value t is row index[t] of the window.
struct RowView {
  const std::int32_t* index = nullptr;
  std::size_t count = 0;
};

// The private memory of a task.
struct TaskScratch {
  float* keys;           // [D, window rows]
  float* values;         // [window rows, D]
  float* window_scores;  // [window rows]
  float* weights;        // [rows, group, kChunk]
  float* acc;            // [kValueQueries, D]
  SoftmaxState* states;  // [rows, group] of the spans so far
  // Of a span that is not the first one that its row sees, until it is whole.
  SoftmaxState* span_states;  // [rows, group]
  float* span_acc;            // [rows, group, D]
};

// The first position that a row at position `length` - 1 sees.
std::size_t first_seen(std::size_t length, std::int32_t window) {
  const auto most = static_cast<std::size_t>(window);
  return most == 0 || length <= most ? 0 : length - most;
}

// Runs the tasks of one attention call. Results go to `out` if one task sees all chunks of its
// rows, else to partials [M, H, units, 2 + D], merged afterwards. A unit is a span, or a chunk
// where there are too few spans to share out.
class CpuAttention {
 public:
  CpuAttention(const KernelTable& kernels, CpuWorkspace& ws, const Pass& pass, std::int32_t layer,
               const float* q, const AttentionShape& shape, float* out)
      : kernels_(kernels),
        ws_(ws),
        pass_(pass),
        layer_(layer),
        q_(q),
        shape_(shape),
        out_(out),
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
    const std::size_t wanted = split ? ceil_div(4 * threads, whole_tasks) : 1;
    unit_ = most_chunks_ >= wanted * kSpan ? kSpan : 1;
    units_ = ceil_div(most_chunks_, unit_);
    task_chunks_ = split ? std::max<std::size_t>(1, units_ / wanted) * unit_ : most_chunks_;
    if (split) {
      partial_stride_ = 2 + dim_;
      const auto rows = static_cast<std::size_t>(pass_.rows);
      partials_ = ws_.get<float>(Scratch::kPartials, rows * heads_ * units_ * partial_stride_);
    }
    tasks_ = ws_.get<Task>(Scratch::kTasks, whole_tasks * ceil_div(most_chunks_, task_chunks_));
    make_tasks();
    pool.parallel_for(task_count_, [&](std::size_t i, int slot) { run_task(tasks_[i], slot); });
    if (split) merge(pool);
  }

 private:
  static std::size_t row_blocks(const Segment& segment) {
    return ceil_div(static_cast<std::size_t>(segment.rows), kTaskRows);
  }

  void find_paths() {
    std::size_t cells = 0, rows = 0;
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const auto n = static_cast<std::size_t>(pass_.segments[s].rows);
      if (pass_.segments[s].is_chain) continue;
      cells += n * n;
      rows += n;
    }
    paths_ =
        ws_.get<SegmentPaths>(Scratch::kSegments, static_cast<std::size_t>(pass_.segment_count));
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
      paths_[s] = paths;
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
      const SegmentPaths* paths = &paths_[s];
      const auto rows = static_cast<std::size_t>(segment.rows);
      // The last rows have the most to do: first.
      for (std::size_t block = row_blocks(segment); block-- > 0;) {
        const std::size_t first = block * kTaskRows, last = std::min(first + kTaskRows, rows);
        std::size_t chunks = 0, from = most_chunks_;
        for (std::size_t row = first; row < last; ++row) {
          const std::size_t length = static_cast<std::size_t>(segment.base) + paths->length(row);
          chunks = std::max(chunks, chunks_of(length));
          from = std::min(from, first_seen(length, shape_.window) / kChunk);
        }
        for (std::int32_t head = 0; head < shape_.kv_heads; ++head) {
          for (std::size_t c = from; c < chunks; c = piece_end(c, task_chunks_)) {
            const std::size_t end = std::min(piece_end(c, task_chunks_), chunks);
            tasks_[task_count_++] = {&segment, paths, head, first, last, c, end};
          }
        }
      }
    }
  }

  // Most rows of a window. The ancestors of a tree may lie anywhere in the segment.
  static std::size_t window_rows(const Task& task) {
    return round_up_16(kChunk + (task.paths->lengths != nullptr ? task.last_row : 0));
  }

  TaskScratch make_scratch(const Task& task, int slot) const {
    const std::size_t window = window_rows(task), dim = round_up_16(dim_);
    const std::size_t queries = (task.last_row - task.first_row) * group_;
    constexpr std::size_t kStateFloats = sizeof(SoftmaxState) / sizeof(float);
    const bool several_spans = partials_ == nullptr && task.last_chunk > kSpan;
    const std::size_t floats = 2 * window * dim + window + queries * kChunk + kValueQueries * dim +
                               2 * queries * kStateFloats + (several_spans ? queries * dim_ : 0);
    TaskScratch s;
    s.keys = ws_.get_for_thread<float>(slot, floats);
    s.values = s.keys + window * dim;
    s.window_scores = s.values + window * dim;
    s.weights = s.window_scores + window;
    s.acc = s.weights + queries * kChunk;
    s.states = reinterpret_cast<SoftmaxState*>(s.acc + kValueQueries * dim);
    s.span_states = s.states + queries;
    s.span_acc = reinterpret_cast<float*>(s.span_states + queries);
    return s;
  }

  Window load_window(const Task& task, std::size_t chunk, const TaskScratch& scratch) const {
    const KvCacheView& cache = task.segment->cache;
    const auto base = static_cast<std::size_t>(task.segment->base);
    Window w;
    w.first = chunk * kChunk;
    std::size_t last = std::min(w.first + kChunk, base + task.last_row);
    if (task.paths->lengths != nullptr && w.first + kChunk > base) {
      w.first = std::min(w.first, base);
      last = base + task.last_row;
    }
    w.rows = last - w.first;
    w.stride = round_up_16(w.rows);
    w.keys = scratch.keys;
    w.values = scratch.values;
    const std::size_t offset =
        cache.row_offset(layer_, task.kv_head, static_cast<std::int32_t>(w.first));
    const CacheRows type = cache.dtype == DType::kF16    ? CacheRows::kF16
                           : cache.dtype == DType::kQ8_0 ? CacheRows::kQ8
                                                         : CacheRows::kF32;
    const std::size_t ahead = chunk + 1 < task.last_chunk ? kChunk * cache.row_bytes() : 0;
    // The keys last: they are read first, and hot then.
    kernels_.load_values(cache.values + offset, type, w.rows, dim_, ahead, scratch.values);
    kernels_.transpose_keys(cache.keys + offset, type, w.rows, dim_, ahead, w.keys, w.stride);
    return w;
  }

  void run_task(const Task& task, int slot) const {
    const std::size_t rows = task.last_row - task.first_row;
    const TaskScratch scratch = make_scratch(task, slot);
    for (std::size_t chunk = task.first_chunk; chunk < task.last_chunk; ++chunk) {
      run_chunk(task, chunk, load_window(task, chunk, scratch), scratch);
      if (partials_ == nullptr && std::min(piece_end(chunk, kSpan), task.last_chunk) == chunk + 1) {
        merge_span(task, chunk / kSpan, scratch);
      }
    }
    if (partials_ != nullptr) return;
    for (std::size_t query = 0; query < rows * group_; ++query) {
      const std::size_t head = static_cast<std::size_t>(task.kv_head) * group_ + query % group_;
      finish(scratch.states[query], head, out_ + query_offset(task, query), scratch.acc);
    }
  }

  // The weighted values of a query become its result. A sink counts as one more chunk, with the
  // weight exp(0) and the value zero. zeros: scratch [D]
  void finish(SoftmaxState state, std::size_t head, float* result, float* zeros) const {
    if (shape_.sinks != nullptr) {
      std::fill_n(zeros, dim_, 0.0f);
      state = kernels_.attention_merge(state, result, {shape_.sinks[head], 1.0f}, zeros, dim_);
    }
    kernels_.divide(result, state.sum, dim_, result);
  }

  // Offset in q and out [M, H, D] of the task's query number `query` of [rows, group].
  std::size_t query_offset(const Task& task, std::size_t query) const {
    const std::size_t row = task.first_row + query / group_, g = query % group_;
    const std::size_t m = static_cast<std::size_t>(task.segment->first_row) + row;
    return (m * heads_ + static_cast<std::size_t>(task.kv_head) * group_ + g) * dim_;
  }

  // What a row sees of a chunk. `own_index` [kChunk] is used where its positions are not
  // consecutive.
  RowView view_of(const Task& task, std::size_t chunk, const Window& w, std::size_t row,
                  std::int32_t* own_index) const {
    const auto base = static_cast<std::size_t>(task.segment->base);
    const std::size_t length = base + task.paths->length(row);
    const std::size_t last = std::min((chunk + 1) * kChunk, length);
    const std::size_t first = std::max(chunk * kChunk, first_seen(length, shape_.window));
    if (first >= last) return {};
    const std::size_t count = last - first;
    if (task.paths->lengths == nullptr || last <= base) {
      return {kIota.v + (first - chunk * kChunk), count};
    }
    const std::int32_t* path = task.paths->rows + row * task.paths->stride;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t position = first + i;
      const std::size_t cache_row =
          position < base ? position : base + static_cast<std::size_t>(path[position - base]);
      own_index[i] = static_cast<std::int32_t>(cache_row - w.first);
    }
    return {own_index, count};
  }

  // All queries of a task over one chunk: their weights, then the weighted values, several queries
  // with the same view at a time.
  void run_chunk(const Task& task, std::size_t chunk, const Window& w,
                 const TaskScratch& scratch) const {
    RowView views[kTaskRows];
    std::int32_t own_index[kTaskRows][kChunk];
    SoftmaxState fresh[kValueQueries];
    const std::size_t rows = task.last_row - task.first_row;
    for (std::size_t i = 0; i < rows; ++i) {
      views[i] = view_of(task, chunk, w, task.first_row + i, own_index[i]);
    }
    for (std::size_t query = 0; query < rows * group_;) {
      const RowView& view = views[query / group_];
      std::size_t batch = 0;
      for (; batch < kValueQueries && query + batch < rows * group_; ++batch) {
        const RowView& other = views[(query + batch) / group_];
        if (other.index != view.index || other.count != view.count) break;
        if (view.count > 0) score(task, w, view, query + batch, scratch);
      }
      if (view.count > 0) {
        kernels_.attention_softmax(scratch.weights + query * kChunk, static_cast<int>(batch),
                                   static_cast<int>(view.count), fresh);
        kernels_.attention_values(scratch.weights + query * kChunk, static_cast<int>(batch),
                                  w.values, view.index, static_cast<int>(view.count), dim_,
                                  scratch.acc);
        for (std::size_t i = 0; i < batch; ++i) {
          take_result(task, chunk, query + i, fresh[i], scratch.acc + i * dim_, scratch);
        }
      }
      query += batch;
    }
  }

  // The scores of one query.
  void score(const Task& task, const Window& w, const RowView& view, std::size_t query,
             const TaskScratch& scratch) const {
    float* weights = scratch.weights + query * kChunk;
    const bool in_order = view.index == kIota.v;
    // Rows beyond a chain row's own are scored too, a few at most, and not looked at.
    const std::size_t rows = in_order ? view.count : w.rows;
    kernels_.attention_scores(q_ + query_offset(task, query), w.keys, w.stride, rows, dim_,
                              shape_.scale, in_order ? weights : scratch.window_scores);
    for (std::size_t t = 0; !in_order && t < view.count; ++t) {
      weights[t] = scratch.window_scores[view.index[t]];
    }
    if (shape_.score_cap != 0.0f) kernels_.soft_cap(weights, view.count, shape_.score_cap);
  }

  // A chunk's result for one query becomes, or is merged into, that of its unit or span.
  void take_result(const Task& task, std::size_t chunk, std::size_t query, SoftmaxState state,
                   const float* acc, const TaskScratch& scratch) const {
    const std::size_t offset = query_offset(task, query);
    const std::size_t first =
        first_chunk(task.segment, *task.paths, task.first_row + query / group_);
    if (partials_ != nullptr) {
      float* partial = partial_of(offset / dim_, chunk);
      if (chunk != first && chunk % unit_ != 0) {
        state = kernels_.attention_merge({partial[0], partial[1]}, partial + 2, state, acc, dim_);
      } else {
        std::copy_n(acc, dim_, partial + 2);
      }
      partial[0] = state.max;
      partial[1] = state.sum;
      return;
    }
    const bool first_span = chunk / kSpan == first / kSpan;
    float* whole = first_span ? out_ + offset : scratch.span_acc + query * dim_;
    SoftmaxState& kept = first_span ? scratch.states[query] : scratch.span_states[query];
    if (chunk != first && chunk % kSpan != 0) {
      kept = kernels_.attention_merge(kept, whole, state, acc, dim_);
    } else {
      kept = state;
      std::copy_n(acc, dim_, whole);
    }
  }

  // Merges a span into the result of each query that saw any of it; its first one is there already.
  void merge_span(const Task& task, std::size_t span, const TaskScratch& scratch) const {
    const std::size_t queries = (task.last_row - task.first_row) * group_;
    for (std::size_t query = 0; query < queries; ++query) {
      const std::size_t row = task.first_row + query / group_;
      const std::size_t length =
          static_cast<std::size_t>(task.segment->base) + task.paths->length(row);
      if (span <= first_chunk(task.segment, *task.paths, row) / kSpan) continue;
      if (span * kSpan >= chunks_of(length)) continue;
      SoftmaxState& state = scratch.states[query];
      state = kernels_.attention_merge(state, out_ + query_offset(task, query),
                                       scratch.span_states[query], scratch.span_acc + query * dim_,
                                       dim_);
    }
  }

  // [2 + D]: the result of a query of [M, H] over the chunk's unit.
  float* partial_of(std::size_t query, std::size_t chunk) const {
    return partials_ + (query * units_ + chunk / unit_) * partial_stride_;
  }

  // The first chunk that a row of the segment sees any of.
  std::size_t first_chunk(const Segment* segment, const SegmentPaths& paths,
                          std::size_t row) const {
    const std::size_t length = static_cast<std::size_t>(segment->base) + paths.length(row);
    return first_seen(length, shape_.window) / kChunk;
  }

  // Merges the units of every row and head in order: what a task does that sees them all.
  void merge(ThreadPool& pool) {
    for (std::int32_t s = 0; s < pass_.segment_count; ++s) {
      const Segment& segment = pass_.segments[s];
      const SegmentPaths& paths = paths_[s];
      const auto rows = static_cast<std::size_t>(segment.rows);
      const auto base = static_cast<std::size_t>(segment.base);
      const std::size_t queries = rows * heads_;
      const std::size_t pieces = std::min(queries, 2 * static_cast<std::size_t>(pool.threads()));
      pool.parallel_for(pieces, [&](std::size_t piece, int slot) {
        float* zeros = ws_.get_for_thread<float>(slot, dim_);
        const std::size_t end = queries * (piece + 1) / pieces;
        for (std::size_t query = queries * piece / pieces; query < end; ++query) {
          const std::size_t row = query / heads_;
          merge_query(static_cast<std::size_t>(segment.first_row) * heads_ + query,
                      first_chunk(&segment, paths, row), chunks_of(base + paths.length(row)),
                      zeros);
        }
      });
    }
  }

  // Chunks [first, last) of a query of [M, H]: the units of each span, then the spans. zeros:
  // scratch [D]
  void merge_query(std::size_t query, std::size_t first, std::size_t last, float* zeros) const {
    float* result = out_ + query * dim_;
    SoftmaxState state{};
    for (std::size_t chunk = first; chunk < last; chunk = piece_end(chunk, kSpan)) {
      float* span = partial_of(query, chunk);  // its first unit, then all of it
      SoftmaxState span_state{span[0], span[1]};
      const std::size_t end = std::min(piece_end(chunk, kSpan), last);
      for (std::size_t next = piece_end(chunk, unit_); next < end; next += unit_) {
        const float* partial = partial_of(query, next);
        span_state = kernels_.attention_merge(span_state, span + 2, {partial[0], partial[1]},
                                              partial + 2, dim_);
      }
      if (chunk == first) {
        state = span_state;
        std::copy_n(span + 2, dim_, result);
      } else {
        state = kernels_.attention_merge(state, result, span_state, span + 2, dim_);
      }
    }
    finish(state, query % heads_, result, zeros);
  }

  const KernelTable& kernels_;
  CpuWorkspace& ws_;
  const Pass& pass_;
  std::int32_t layer_;
  const float* q_;
  const AttentionShape& shape_;
  float* out_;
  std::size_t dim_, heads_, group_;
  std::size_t most_chunks_ = 0, task_chunks_ = 1;
  std::size_t unit_ = 1, units_ = 0, partial_stride_ = 0;  // chunks per unit, units of a query
  float* partials_ = nullptr;
  SegmentPaths* paths_ = nullptr;  // [segments]
  Task* tasks_ = nullptr;
  std::size_t task_count_ = 0;
};

}  // namespace

void CpuBackend::attention(Workspace& ws, const Pass& pass, std::int32_t layer, const float* q,
                           const AttentionShape& shape, float* out) const {
  if (pass.rows <= 0) return;
  CpuAttention(kernels_, as_cpu(ws), pass, layer, q, shape, out).run(*pool_);
}

}  // namespace specdec
