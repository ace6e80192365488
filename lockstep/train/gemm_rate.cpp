#include "lockstep/train/gemm_rate.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

namespace lockstep::train {

double measure_gemm_rate(at::ScalarType dtype, at::Device device) {
  using Clock = std::chrono::steady_clock;
  const int64_t size = device.is_cpu() ? 768 : 8192;
  const at::Tensor a = at::ones({size, size}, at::TensorOptions().dtype(dtype).device(device));
  const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  double best = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  do {
    const auto begin = Clock::now();
    at::mm(a, a)[0][0].item();  // the read waits for a GPU
    best = std::max(best, flops / std::chrono::duration<double>(Clock::now() - begin).count());
  } while (Clock::now() < end);
  return best;
}

}  // namespace lockstep::train
