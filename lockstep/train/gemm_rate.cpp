#include "lockstep/train/gemm_rate.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

namespace lockstep::train {
namespace {

double seconds_of_product(const at::Tensor& a) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  at::mm(a, a)[0][0].item();  // the read waits for a GPU
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Beside it the start of a kernel and the read are little.
constexpr double kLongEnough = 2e-3;

}  // namespace

double measure_gemm_rate(at::ScalarType dtype, at::Device device) {
  using Clock = std::chrono::steady_clock;
  const int64_t largest = device.is_cpu() ? 768 : 8192;
  const auto options = at::TensorOptions().dtype(dtype).device(device);
  int64_t size = 768;
  at::Tensor a = at::ones({size, size}, options);
  if (size < largest) seconds_of_product(a);  // a GPU's library starts with its first product
  while (size < largest && seconds_of_product(a) < kLongEnough) {
    size = std::min(2 * size, largest);
    a = at::ones({size, size}, options);
  }
  const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  double best = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  do best = std::max(best, flops / seconds_of_product(a));
  while (Clock::now() < end);
  return best;
}

}  // namespace lockstep::train
