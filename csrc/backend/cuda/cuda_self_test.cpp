// The kernels of kernels/self_test.cu against what the host computes.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/kernels/self_test.h"
#include "backend/cuda_info.h"
#include "core/error.h"
#include "core/half.h"
#include "core/math.h"

namespace specdec {
namespace cuda {
namespace {

// An array on the device and what it holds, or should hold.
template <typename T>
struct Tested {
  explicit Tested(std::size_t count) : host(count), memory(count * sizeof(T)) {}

  T* upload() {
    copy_to_device(memory.data(), host.data(), host.size() * sizeof(T));
    return memory.as<T>();
  }

  std::vector<T> host;
  DeviceMemory memory;
};

struct SelfTest {
  Tested<std::int8_t> a{16 * 32}, b{8 * 32};
  Tested<int> products{128}, half_products{256}, dots{32};
  Tested<float> sums{32};
  Tested<std::uint8_t> source{kSelfTestGroups * 512}, copied{kSelfTestGroups * 512};
  Tested<float> halves{kSelfTestValues}, x{kSelfTestValues}, exps{kSelfTestValues},
      roots{kSelfTestValues}, fused{kSelfTestValues};
};

void fill_inputs(SelfTest* test) {
  // Any bytes do; every value of a byte occurs.
  for (std::size_t i = 0; i < test->a.host.size(); ++i) {
    test->a.host[i] = static_cast<std::int8_t>(i * 37 + 11);
  }
  for (std::size_t i = 0; i < test->b.host.size(); ++i) {
    test->b.host[i] = static_cast<std::int8_t>(i * 91 + 5);
  }
  for (std::size_t i = 0; i < test->source.host.size(); ++i) {
    test->source.host[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
  }
  for (std::size_t i = 0; i < kSelfTestValues; ++i) {
    test->x.host[i] = (static_cast<float>(i) - 32768.0f) / 327.0f;  // -100 to 100
  }
}

int product(const SelfTest& test, int row, int column, int first, int count) {
  int sum = 0;
  for (int k = first; k < first + count; ++k) {
    sum += test.a.host[static_cast<std::size_t>(32 * row + k)] *
           test.b.host[static_cast<std::size_t>(32 * column + k)];
  }
  return sum;
}

// The sum of 16 values by the tree of sum_16_lanes; exact here.
float half_warp_sum(const SelfTest& test, std::size_t lane) {
  float sum = 0.0f;
  for (std::size_t i = 0; i < 16; ++i) sum += test.a.host[lane / 16 * 16 + i];
  return sum;
}

void fill_expected(SelfTest* test) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const auto at = static_cast<std::size_t>(row * 8 + column);
      const int first = product(*test, row, column, 0, 16);
      const int second = product(*test, row, column, 16, 16);
      test->products.host[at] = kSelfTestStart + first + second;
      test->half_products.host[at] = kSelfTestStart + first;
      test->half_products.host[128 + at] = kSelfTestStart + second;
    }
  }
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const int g = static_cast<int>(lane) / 4, t = static_cast<int>(lane) % 4;
    test->dots.host[lane] = kSelfTestStart + product(*test, g, g, 4 * t, 4);
    test->sums.host[lane] = half_warp_sum(*test, lane);
  }
  test->copied.host = test->source.host;
  for (std::size_t i = 0; i < kSelfTestValues; ++i) {
    const float x = test->x.host[i];
    test->halves.host[i] = half_to_float(static_cast<std::uint16_t>(i));
    test->exps.host[i] = exp_f32(x);
    test->roots.host[i] = 1.0f / std::sqrt(x * x + 1.0f);
    test->fused.host[i] = std::fma(x, x, x) + x * x;
  }
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || float_to_bits(a) == float_to_bits(b);
}
template <typename T>
bool same(T a, T b) {
  return a == b;
}

// Adds a line about the first value that is not as expected.
template <typename T>
void compare(StreamHandle stream, const char* what, const Tested<T>& expected,
             std::vector<std::string>* faults) {
  std::vector<T> got(expected.host.size());
  copy_to_host(stream, got.data(), expected.memory.data(), got.size() * sizeof(T));
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (same(got[i], expected.host[i])) continue;
    faults->push_back(
        str(what, ": element ", i, " is ", +got[i], ", expected ", +expected.host[i]));
    return;
  }
}

}  // namespace

std::vector<std::string> CudaBackend::self_test() const {
  select_device(device_);
  SelfTest test;
  fill_inputs(&test);
  const Stream stream;
  queue_self_test(stream.handle(),
                  {test.a.upload(), test.b.upload(), test.products.upload(),
                   test.half_products.upload(), test.dots.upload(), test.sums.upload(),
                   test.source.upload(), test.copied.upload(), test.halves.upload(),
                   test.x.upload(), test.exps.upload(), test.roots.upload(), test.fused.upload()});
  fill_expected(&test);
  std::vector<std::string> faults;
  compare(stream.handle(), "multiply_16x32", test.products, &faults);
  compare(stream.handle(), "multiply_16x16", test.half_products, &faults);
  compare(stream.handle(), "dp4a", test.dots, &faults);
  compare(stream.handle(), "sum_16_lanes", test.sums, &faults);
  compare(stream.handle(), "copy_async_16", test.copied, &faults);
  compare(stream.handle(), "half_value", test.halves, &faults);
  compare(stream.handle(), "exp_f32", test.exps, &faults);
  compare(stream.handle(), "1 / sqrt", test.roots, &faults);
  compare(stream.handle(), "fma", test.fused, &faults);
  return faults;
}

}  // namespace cuda

std::vector<std::string> cuda_self_test(const std::string& device) {
  const std::shared_ptr<const Backend> backend = make_cuda_backend(device);
  if (backend == nullptr) throw InvalidArgument(str("'", device, "' is no CUDA device"));
  return static_cast<const cuda::CudaBackend&>(*backend).self_test();
}

}  // namespace specdec
