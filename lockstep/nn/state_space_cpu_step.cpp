#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "lockstep/nn/state_space_cpu.h"
#include "lockstep/nn/state_space_cpu_blocks.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;

// One token of one head.
template <typename T>
struct Step {
  const T *x, *b, *c;
  float decay, delta, d;
  int64_t channels, numbers;
  float* state;  // [P, N]
  T* y;
};

template <typename T>
LOCKSTEP_INLINE void step(const Step<T>& s) {
  for (int64_t p = 0; p < s.channels; ++p) {
    const auto x = static_cast<float>(s.x[p]);
    float* const state = s.state + p * s.numbers;
    Floats sum{};
    for (int64_t i = 0; i < s.numbers; i += kLanes) {
      Floats before{}, b{}, c{};
      vec::load(state + i, s.numbers - i, before);
      vec::load(s.b + i, s.numbers - i, b);
      vec::load(s.c + i, s.numbers - i, c);
      before = before * s.decay + b * (s.delta * x);
      vec::store(state + i, s.numbers - i, before);
      sum += before * c;
    }
    s.y[p] = static_cast<T>(vec::sum(sum) + s.d * x);
  }
}

LOCKSTEP_CLONES void step_of(const Step<float>& s) { step(s); }
LOCKSTEP_CLONES void step_of(const Step<c10::BFloat16>& s) { step(s); }

}  // namespace

at::Tensor scan_step_cpu(const Scan& scan, const at::Tensor& state) {
  const int64_t heads = scan.x.size(2), channels = scan.x.size(3), numbers = scan.b.size(3), of_group = heads / scan.b.size(2);
  at::Tensor y = at::empty(scan.x.sizes(), scan.x.options());
  scan_cpu::of_dtype(scan.x, [&]<typename T>(T) {
    at::parallel_for(0, scan.x.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / heads, head = i % heads;
        const float delta = scan.delta.const_data_ptr<float>()[i];
        step_of(Step<T>{.x = scan_cpu::rows_of<T>(scan.x, row, 0, head).data,
                        .b = scan_cpu::rows_of<T>(scan.b, row, 0, head / of_group).data,
                        .c = scan_cpu::rows_of<T>(scan.c, row, 0, head / of_group).data,
                        .decay = std::exp(scan.a.const_data_ptr<float>()[head] * delta),
                        .delta = delta,
                        .d = scan.d.const_data_ptr<float>()[head],
                        .channels = channels,
                        .numbers = numbers,
                        .state = state.data_ptr<float>() + i * channels * numbers,
                        .y = y.data_ptr<T>() + i * channels});
      }
    });
  });
  return y;
}

}  // namespace lockstep::nn
