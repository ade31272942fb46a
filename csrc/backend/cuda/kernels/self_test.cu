// Every instruction of device_instructions.h, and the arithmetic that must give the host's bits, on
// small inputs: cuda_self_test.cpp compares with what they are defined to do.
#include "backend/cuda/device_instructions.h"
#include "backend/cuda/kernels/self_test.h"
#include "backend/cuda/launch.h"
#include "core/math.h"

namespace specdec::cuda {
namespace {

// Four bytes of row `row` of [rows, 32] from k on.
__device__ __forceinline__ unsigned word_at(const std::int8_t* matrix, int row, int k) {
  return *reinterpret_cast<const unsigned*>(matrix + 32 * row + k);
}

__device__ __forceinline__ void store_product(const int (&d)[4], int* out) {
  const int g = lane_of_warp() / 4, t = lane_of_warp() % 4;
  out[g * 8 + 2 * t] = d[0];
  out[g * 8 + 2 * t + 1] = d[1];
  out[(g + 8) * 8 + 2 * t] = d[2];
  out[(g + 8) * 8 + 2 * t + 1] = d[3];
}

// grid: 1 block of one warp
__global__ void __launch_bounds__(kWarpLanes) test_products(SelfTestArrays arrays) {
  const int g = lane_of_warp() / 4, k = 4 * (lane_of_warp() % 4);
  const unsigned a[4] = {word_at(arrays.a, g, k), word_at(arrays.a, g + 8, k),
                         word_at(arrays.a, g, 16 + k), word_at(arrays.a, g + 8, 16 + k)};
  const unsigned b[2] = {word_at(arrays.b, g, k), word_at(arrays.b, g, 16 + k)};
  int d[4];
  multiply_16x32(d, a, b, kSelfTestStart);
  store_product(d, arrays.products);
  multiply_16x16(d, a[0], a[1], b[0], kSelfTestStart);
  store_product(d, arrays.half_products);
  multiply_16x16(d, a[2], a[3], b[1], kSelfTestStart);
  store_product(d, arrays.half_products + 128);
  const int lane = lane_of_warp();
  arrays.dots[lane] = __dp4a(static_cast<int>(a[0]), static_cast<int>(b[0]), kSelfTestStart);
  arrays.sums[lane] = sum_16_lanes(static_cast<float>(arrays.a[lane]));
}

// Copies in groups, each read as soon as it may be. grid: 1 block of one warp
__global__ void __launch_bounds__(kWarpLanes) test_copies(SelfTestArrays arrays) {
  SPECDEC_SHARED(uint4, stage, [kSelfTestGroups][kWarpLanes]);
  const int lane = lane_of_warp();
  for (int i = 0; i < kSelfTestGroups; ++i) {
    copy_async_16(&stage[i][lane], arrays.source + 16 * (i * kWarpLanes + lane));
    copy_async_commit();
  }
  for (int i = 0; i < kSelfTestGroups; ++i) {
    copy_async_wait(kSelfTestGroups - 1 - i);
    __syncwarp();
    const int other = (lane + 1) % kWarpLanes;
    reinterpret_cast<uint4*>(arrays.copied)[i * kWarpLanes + other] = stage[i][other];
  }
}

// grid: 65536 threads, one for each half
__global__ void __launch_bounds__(256) test_arithmetic(SelfTestArrays arrays) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  arrays.halves[i] = half_value(static_cast<std::uint16_t>(i));
  const float x = arrays.x[i];
  arrays.exps[i] = exp_f32(x);
  arrays.roots[i] = 1.0f / sqrtf(x * x + 1.0f);
  arrays.fused[i] = fmaf(x, x, x) + x * x;
}

}  // namespace

void queue_self_test(StreamHandle stream, const SelfTestArrays& arrays) {
  launch("test_products", test_products, {}, kWarpLanes, 0, stream, arrays);
  launch("test_copies", test_copies, {}, kWarpLanes, 0, stream, arrays);
  launch("test_arithmetic", test_arithmetic, {kSelfTestValues / 256}, 256, 0, stream, arrays);
}

}  // namespace specdec::cuda
