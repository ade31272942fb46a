// Products with weights: out = x W^T. Work is split over output rows only, in units of 32-row
// groups.
#include <algorithm>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"

namespace specdec {
namespace {

// Tasks per thread of a region: enough that a thread which was put aside costs little.
constexpr std::size_t kTasksPerThread = 8;
// Packed bytes of a task: while the column tiles of a long prefill pass over it, it stays in the L2
// cache.
constexpr std::size_t kTaskBytes = 256 * 1024;

// Can the two weights use one preparation of their common input?
bool same_input(const CpuWeight& a, const CpuWeight& b) {
  if (a.layout() == nullptr || b.layout() == nullptr) return a.layout() == b.layout();
  const ActKind &x = a.layout()->act, &y = b.layout()->act;
  return x.zero_point == y.zero_point && x.halves == y.halves && x.sums == y.sums;
}

}  // namespace

void CpuBackend::quantize_rows(std::size_t rows, const float* x, std::size_t k, const ActKind& kind,
                               ActBlock* out) const {
  const std::size_t blocks = k / kActBlockSize;
  const ColumnTiles tiles(rows, static_cast<std::size_t>(kernels_.tile_cols));
  for_rows(tiles.count, rows * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin; tile < end; ++tile) {
      const std::size_t first = tiles.first(tile), width = tiles.width(tile);
      for (std::size_t c = 0; c < width; ++c) {
        kernels_.quantize_row(x + (first + c) * k, blocks, kind, out + first * blocks + c, width);
      }
    }
  });
}

void CpuBackend::interleave_rows(std::size_t rows, const float* x, std::size_t k,
                                 float* out) const {
  const std::size_t padded = round_up_16(k);
  const ColumnTiles tiles(rows, static_cast<std::size_t>(kernels_.float_tile_cols));
  for_rows(tiles.count, rows * k, [&](std::size_t begin, std::size_t end) {
    for (std::size_t tile = begin; tile < end; ++tile) {
      const std::size_t first = tiles.first(tile), width = tiles.width(tile);
      for (std::size_t c = 0; c < width; ++c) {
        const float* from = x + (first + c) * k;
        float* to = out + first * padded + 16 * c;
        for (std::size_t i = 0; i < k; i += 16, to += 16 * width) {
          const std::size_t n = std::min<std::size_t>(16, k - i);
          std::copy_n(from + i, n, to);
          std::fill(to + n, to + 16, 0.0f);
        }
      }
    }
  });
}

void CpuBackend::prepare_input(CpuWorkspace& ws, Scratch area, std::span<const MatrixRows> parts,
                               const float* x, MatmulJob* job) const {
  const CpuWeight& weight = *job->weight;
  const std::size_t k = weight.cols(), rows = parts.back().first + parts.back().rows;
  if (weight.layout() == nullptr) {
    float* arranged = ws.get<float>(area, rows * round_up_16(k));
    for (const MatrixRows& part : parts) {
      interleave_rows(part.rows, x + part.first * k, k, arranged + part.first * round_up_16(k));
    }
    job->x = arranged;
  } else {
    ActBlock* acts = ws.get<ActBlock>(area, rows * weight.blocks());
    for (const MatrixRows& part : parts) {
      quantize_rows(part.rows, x + part.first * k, k, weight.layout()->act,
                    acts + part.first * weight.blocks());
    }
    job->acts = acts;
  }
}

void CpuBackend::prepare_inputs(CpuWorkspace& ws, std::span<const MatrixRows> parts, const float* x,
                                MatmulJob* jobs, std::size_t job_count) const {
  const Scratch areas[3] = {Scratch::kActs, Scratch::kMoreActs, Scratch::kLastActs};
  for (std::size_t j = 0; j < job_count; ++j) {
    std::size_t i = 0;
    while (i < j && !same_input(*jobs[i].weight, *jobs[j].weight)) ++i;
    if (i < j) {
      jobs[j].x = jobs[i].x;
      jobs[j].acts = jobs[i].acts;
    } else {
      prepare_input(ws, areas[j], parts, x, &jobs[j]);
    }
  }
}

void CpuBackend::multiply_packed(const MatmulJob& job, std::size_t rows, std::size_t begin,
                                 std::size_t end) const {
  const CpuWeight& weight = *job.weight;
  const std::size_t blocks = weight.blocks();
  const MatmulGroupFn* table = kernels_.matmul[static_cast<int>(weight.layout()->format)];
  const ColumnTiles tiles(rows, static_cast<std::size_t>(kernels_.tile_cols));
  for (std::size_t tile = 0; tile < tiles.count; ++tile) {
    const std::size_t first = tiles.first(tile);
    const MatmulGroupFn kernel = table[tiles.width(tile) - 1];
    for (std::size_t group = begin; group < end; ++group) {
      const std::size_t n = group * kGroupRows;
      const std::size_t valid = std::min<std::size_t>(kGroupRows, weight.rows() - n);
      kernel(weight.group(group, job.matrix), blocks, job.acts + first * blocks,
             job.out + first * job.out_stride + (n - job.first_row), job.out_stride,
             static_cast<int>(valid));
    }
  }
}

void CpuBackend::multiply_float(const MatmulJob& job, std::size_t rows, std::size_t begin,
                                std::size_t end) const {
  const CpuWeight& weight = *job.weight;
  SPECDEC_CHECK(packed_layout(weight.dtype()) == nullptr, "a product with a table that was loaded ",
                "to be looked up");
  const MatmulFloatFn kernel = weight.dtype() == DType::kF32   ? kernels_.matmul_f32
                               : weight.dtype() == DType::kF16 ? kernels_.matmul_f16
                                                               : kernels_.matmul_bf16;
  const std::size_t last = std::min(end * kGroupRows, weight.rows()), k = weight.cols();
  const ColumnTiles tiles(rows, static_cast<std::size_t>(kernels_.float_tile_cols));
  for (std::size_t tile = 0; tile < tiles.count; ++tile) {
    const std::size_t m = tiles.first(tile);
    for (std::size_t n = begin * kGroupRows; n < last; n += kGroupRows) {
      const auto* w =
          reinterpret_cast<const std::uint8_t*>(weight.source_row(job.matrix * weight.rows() + n));
      const std::size_t count = std::min<std::size_t>(kGroupRows, last - n);
      kernel(w, weight.source_row_bytes(), k, static_cast<int>(count), job.x + m * round_up_16(k),
             static_cast<int>(tiles.width(tile)),
             job.out + m * job.out_stride + (n - job.first_row), job.out_stride);
    }
  }
}

void CpuBackend::multiply_groups(const MatmulJob& job, std::size_t rows, std::size_t begin,
                                 std::size_t end) const {
  if (job.weight->layout() != nullptr) {
    multiply_packed(job, rows, begin, end);
  } else {
    multiply_float(job, rows, begin, end);
  }
}

std::size_t CpuBackend::task_groups(std::size_t total_groups, std::size_t group_bytes) const {
  const std::size_t tasks = kTasksPerThread * static_cast<std::size_t>(pool_->threads());
  const std::size_t even = total_groups / tasks;
  const std::size_t fitting = std::max<std::size_t>(1, kTaskBytes / group_bytes);
  return std::max<std::size_t>(1, std::min(even, fitting));
}

void CpuBackend::multiply(const MatmulJob* jobs, std::size_t job_count, std::size_t rows) const {
  constexpr std::size_t kMostJobs = 3;
  SPECDEC_CHECK(job_count <= kMostJobs, job_count, " jobs");
  std::size_t total_groups = 0, group_bytes = 1;
  for (std::size_t j = 0; j < job_count; ++j) {
    total_groups += jobs[j].weight->groups();
    group_bytes = std::max(group_bytes, kGroupRows * jobs[j].weight->source_row_bytes());
  }
  const std::size_t step = task_groups(total_groups, group_bytes);
  std::size_t tasks_before[kMostJobs + 1] = {};
  for (std::size_t j = 0; j < job_count; ++j) {
    tasks_before[j + 1] = tasks_before[j] + (jobs[j].weight->groups() + step - 1) / step;
  }
  pool_->parallel_for(tasks_before[job_count], [&](std::size_t task, int) {
    std::size_t j = 0;
    while (task >= tasks_before[j + 1]) ++j;
    const std::size_t begin = (task - tasks_before[j]) * step;
    multiply_groups(jobs[j], rows, begin, std::min(begin + step, jobs[j].weight->groups()));
  });
}

void CpuBackend::multiply_parts(const MatmulJob& job, std::span<const MatrixRows> parts) const {
  const std::size_t groups = job.weight->groups();
  const std::size_t wanted =
      task_groups(groups * parts.size(), kGroupRows * job.weight->source_row_bytes());
  const std::size_t step = std::min(wanted, groups), tasks = (groups + step - 1) / step;
  pool_->parallel_for(parts.size() * tasks, [&](std::size_t task, int) {
    const MatrixRows& part = parts[task / tasks];
    const std::size_t begin = task % tasks * step;
    multiply_groups(job.of(part), part.rows, begin, std::min(begin + step, groups));
  });
}

void CpuBackend::matmul(Workspace& ws, std::int32_t rows, const float* x, const Weight& weight,
                        float* out) const {
  if (rows <= 0) return;
  const CpuWeight& w = as_cpu(weight);
  const auto m = static_cast<std::size_t>(rows);
  MatmulJob job{&w, nullptr, nullptr, out, w.rows()};
  const MatrixRows all{0, 0, m};
  prepare_input(as_cpu(ws), Scratch::kActs, {&all, 1}, x, &job);
  multiply(&job, 1, m);
}

}  // namespace specdec
