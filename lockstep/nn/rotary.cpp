#include "lockstep/nn/rotary.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/outer.h>

#include <cmath>

namespace lockstep::nn {

Rotary::Rotary(int64_t positions, int64_t head_size, double theta, const at::TensorOptions& options) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor frequency =
      at::arange(0, head_size, 2, fp32).mul_(-std::log(theta) / static_cast<double>(head_size)).exp_();
  const at::Tensor angle = at::outer(at::arange(positions, fp32), frequency);  // [positions, K/2]
  cos_ = angle.cos().to(options).unsqueeze(1);                                 // [positions, 1, K/2]: over heads
  sin_ = angle.sin().to(options).unsqueeze(1);
}

void Rotary::rotate(const at::Tensor& x, int64_t start, double direction) const {
  const at::Tensor cos = cos_.narrow(0, start, x.size(1));
  const at::Tensor sin = sin_.narrow(0, start, x.size(1));
  const int64_t half = x.size(-1) / 2;
  at::Tensor first = x.narrow(-1, 0, half);
  at::Tensor second = x.narrow(-1, half, half);
  const at::Tensor old_first = first.clone();
  first.mul_(cos).addcmul_(second, sin, -direction);     // x1 cos - x2 sin
  second.mul_(cos).addcmul_(old_first, sin, direction);  // x2 cos + x1 sin
}

}  // namespace lockstep::nn
