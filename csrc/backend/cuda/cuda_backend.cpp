// Memory and the operations on rows. Products: cuda_products.cpp; attention and the cache:
// cuda_attention.cpp; sampling: cuda_sampling.cpp.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/block_decode.h"
#include "backend/cuda/device_choice.h"
#include "core/error.h"

namespace specdec::cuda {
namespace {

class CudaBuffer final : public Buffer {
 public:
  explicit CudaBuffer(std::size_t bytes) : memory_(bytes) {}
  void* data() override { return memory_.data(); }
  std::size_t bytes() const override { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
};

}  // namespace

std::size_t CudaWorkspace::bytes() const {
  std::size_t total = 0;
  for (const DeviceMemory& area : areas_) total += area.bytes();
  return total;
}

void* CudaWorkspace::grow(Area area, std::size_t bytes) {
  DeviceMemory& memory = areas_[static_cast<std::size_t>(area)];
  if (bytes > memory.bytes()) {
    // Give the old memory back first: nothing in it is needed. That waits for the device.
    memory = DeviceMemory();
    memory = DeviceMemory(std::max<std::size_t>(bytes + bytes / 4, 4096));
    ++generation_;
  }
  return memory.data();
}

CudaBackend::CudaBackend(std::string name, int device) : name_(std::move(name)), device_(device) {
  check_kernels_run(device);
  select_device(device);
}

CudaWorkspace& CudaBackend::use(Workspace& workspace) const {
  select_device(device_);
  auto& ws = static_cast<CudaWorkspace&>(workspace);
  ws.begin_operation();
  return ws;
}

std::optional<std::size_t> CudaBackend::free_bytes() const {
  select_device(device_);
  return device_memory().free;
}

void CudaWorkspace::mark_time() {
  select_device(device_);
  record_event(timed_from_.handle(), stream());
}

double CudaWorkspace::ms_since_mark() {
  select_device(device_);
  record_event(timed_to_.handle(), stream());
  wait_for(stream());
  return ms_between(timed_from_.handle(), timed_to_.handle());
}

std::unique_ptr<Buffer> CudaBackend::allocate(std::size_t bytes) const {
  select_device(device_);
  return std::make_unique<CudaBuffer>(bytes);
}

std::unique_ptr<Weight> CudaBackend::load_weight(const TensorView& source, WeightUse use) const {
  select_device(device_);
  return std::make_unique<DeviceWeight>(source, use);
}

std::unique_ptr<Workspace> CudaBackend::make_workspace() const {
  select_device(device_);
  return std::make_unique<CudaWorkspace>(device_, waits_);
}

void CudaBackend::upload(void* destination, const void* host_source, std::size_t bytes) const {
  select_device(device_);
  ++uploads_;
  copy_to_device(destination, host_source, bytes);
}

void CudaBackend::download(Workspace& workspace, void* host_destination, const void* source,
                           std::size_t bytes) const {
  use(workspace).receive(host_destination, source, bytes);
}

void CudaBackend::upload_in_order(Workspace& workspace, void* destination, const void* host_source,
                                  std::size_t bytes) const {
  use(workspace).send(destination, host_source, bytes);
}

void CudaBackend::order(Workspace& earlier, Workspace& later) const {
  CudaWorkspace &first = use(earlier), &second = use(later);
  if (&first == &second) return;
  record_event(first.event().handle(), first.stream());
  wait_for_event(second.stream(), first.event().handle());
}

// Passes of one shape: the same number of rows, caches, and chunks of attention (rounded up to a
// power of two, so that they are few).
bool CudaBackend::run_recorded(Workspace& workspace, std::span<const std::int64_t> key,
                               const std::function<bool()>& body) const {
  CudaWorkspace& ws = use(workspace);
  if (!ws.recordable) return body();
  RecordedPasses::Key whole = ws.segments_key;
  whole.push_back(ws.generation());
  whole.insert(whole.end(), key.begin(), key.end());
  const bool done = ws.recorded_passes().run(ws.stream(), whole, body);
  use(workspace);  // what a norm of an earlier pass has left is gone
  return done;
}

void CudaBackend::embed_rows(Workspace& workspace, const Pass& pass, const Weight& table,
                             float* out) const {
  CudaWorkspace& ws = use(workspace);
  const DeviceWeight& weight = as_device(table);
  const auto count = static_cast<std::size_t>(pass.rows);
  for (std::size_t i = 0; i < count; ++i) {
    const TokenId token = pass.tokens[i];
    const bool known = token >= 0 || pass.drawn == nullptr;
    SPECDEC_CHECK(!known || (token >= 0 && static_cast<std::size_t>(token) < weight.rows()),
                  "token ", token, " of ", weight.rows());
  }
  if (count == 0) return;
  int* tokens = ws.get<int>(Area::kTokens, count);
  ws.send(tokens, pass.tokens, count * sizeof(TokenId));
  const TokenRows rows{tokens, pass.drawn, pass.rows};
  if (is_quantized(weight.dtype())) {
    queue_embed(ws.stream(), weight.dtype(), weight.quantized(), rows, out);
  } else {
    queue_embed(ws.stream(), weight.dtype(), weight.floats(), rows, out);
  }
}

void CudaBackend::layer_norm(Workspace& workspace, std::int32_t rows, std::int32_t cols,
                             const float* x, const float* gain, const float* bias, float eps,
                             float* out) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0) queue_layer_norm(ws.stream(), rows, cols, x, gain, bias, eps, out);
}

void CudaBackend::add_bias(Workspace& workspace, std::int32_t rows, std::int32_t cols, float* x,
                           const float* bias) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0) queue_add_bias(ws.stream(), rows, cols, x, bias);
}

void CudaBackend::scale(Workspace& workspace, std::int64_t count, float* x, float factor) const {
  CudaWorkspace& ws = use(workspace);
  if (count > 0) queue_scale(ws.stream(), count, x, factor);
}

void CudaBackend::scale_rows(Workspace& workspace, std::int32_t rows, std::int32_t cols, float* x,
                             const float* factors) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0) queue_scale_rows(ws.stream(), rows, cols, x, factors);
}

void CudaBackend::soft_cap(Workspace& workspace, std::int64_t count, float* x, float cap) const {
  CudaWorkspace& ws = use(workspace);
  if (count > 0) queue_soft_cap(ws.stream(), count, x, cap);
}

void CudaBackend::add_gated(Workspace& workspace, std::int32_t rows, std::int32_t cols, float* x,
                            const float* y, const float* gate) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0) queue_add_gated(ws.stream(), rows, cols, x, y, gate);
}

void CudaBackend::add(Workspace& workspace, std::int64_t count, float* x, const float* y) const {
  CudaWorkspace& ws = use(workspace);
  if (count > 0) queue_add(ws.stream(), count, x, y);
}

void CudaBackend::copy_rows(Workspace& workspace, std::int32_t rows, std::int32_t cols,
                            const float* x, std::int64_t x_stride, float* out,
                            std::int64_t out_stride) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0 && cols > 0) queue_copy_rows(ws.stream(), rows, cols, x, x_stride, out, out_stride);
}

void CudaBackend::add_silu(Workspace& workspace, std::int32_t rows, std::int32_t cols, float* x,
                           const float* y, const float* bias) const {
  CudaWorkspace& ws = use(workspace);
  if (rows > 0 && cols > 0) queue_add_silu(ws.stream(), rows, cols, x, y, bias);
}

}  // namespace specdec::cuda
