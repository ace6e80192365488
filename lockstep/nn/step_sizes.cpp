#include "lockstep/nn/step_sizes.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softplus.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::nn {
namespace {

constexpr float kLinear = 20;  // from here on softplus is x

struct Limits {
  float least, most;
};

float softplus(float x) { return x > kLinear ? x : std::log1p(std::exp(x)); }

template <typename T>
void forward(const at::Tensor& dt, const float* bias, Limits limits, float* delta) {
  const int64_t tokens = dt.size(1), heads = dt.size(2);
  at::parallel_for(0, dt.size(0) * tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T* from = dt.const_data_ptr<T>() + i / tokens * dt.stride(0) + i % tokens * dt.stride(1);
      for (int64_t h = 0; h < heads; ++h)
        delta[i * heads + h] = std::min(std::max(softplus(static_cast<float>(from[h]) + bias[h]), limits.least), limits.most);
    }
  });
}

// The bias' sum is one of a thread, over all tokens in fp64: H numbers a token.
template <typename T>
void backward(const at::Tensor& dt, const float* bias, Limits limits, const float* ddelta, float* dbias, const at::Tensor& ddt) {
  const int64_t tokens = dt.size(1), heads = dt.size(2);
  std::vector<double> sums(static_cast<size_t>(heads), 0.0);
  for (int64_t i = 0; i < dt.size(0) * tokens; ++i) {
    const T* from = dt.const_data_ptr<T>() + i / tokens * dt.stride(0) + i % tokens * dt.stride(1);
    T* to = ddt.data_ptr<T>() + i / tokens * ddt.stride(0) + i % tokens * ddt.stride(1);
    for (int64_t h = 0; h < heads; ++h) {
      const float x = static_cast<float>(from[h]) + bias[h], delta = softplus(x);
      const bool limited = delta < limits.least || delta > limits.most;
      const float slope = limited ? 0.0f : x > kLinear ? 1.0f : 1.0f / (1.0f + std::exp(-x));
      const float gradient = ddelta[i * heads + h] * slope;
      to[h] = static_cast<T>(gradient);
      sums[static_cast<size_t>(h)] += gradient;
    }
  }
  for (int64_t h = 0; h < heads; ++h) dbias[h] += static_cast<float>(sums[static_cast<size_t>(h)]);
}

void check(const at::Tensor& dt, const at::Tensor& bias) {
  LOCKSTEP_CHECK(dt.dim() == 3 && dt.stride(2) == 1 && (dt.scalar_type() == at::kFloat || dt.scalar_type() == at::kBFloat16), "dt ", dt.sizes(),
                 " ", dt.dtype());
  LOCKSTEP_CHECK(bias.scalar_type() == at::kFloat && bias.is_contiguous() && bias.numel() == dt.size(2), "bias ", bias.sizes(), " for dt ",
                 dt.sizes());
}

Limits limits_of(double least, double most) { return {.least = static_cast<float>(least), .most = static_cast<float>(most)}; }

}  // namespace

at::Tensor step_sizes(const at::Tensor& dt, const at::Tensor& bias, double least, double most) {
  check(dt, bias);
  if (!dt.is_cpu()) return at::softplus(dt.to(at::kFloat) + bias, 1, kLinear).clamp_(least, most).contiguous();
  at::Tensor delta = at::empty(dt.sizes(), at::kFloat);
  if (dt.scalar_type() == at::kFloat)
    forward<float>(dt, bias.const_data_ptr<float>(), limits_of(least, most), delta.data_ptr<float>());
  else
    forward<c10::BFloat16>(dt, bias.const_data_ptr<float>(), limits_of(least, most), delta.data_ptr<float>());
  return delta;
}

void step_sizes_backward(const at::Tensor& dt, const at::Tensor& bias, double least, double most, const at::Tensor& ddelta,
                         const at::Tensor& dbias, const at::Tensor& ddt) {
  check(dt, bias);
  LOCKSTEP_CHECK(ddelta.sizes() == dt.sizes() && ddelta.is_contiguous() && ddelta.scalar_type() == at::kFloat, "ddelta ", ddelta.sizes());
  LOCKSTEP_CHECK(ddt.sizes() == dt.sizes() && ddt.scalar_type() == dt.scalar_type() && ddt.stride(2) == 1, "ddt ", ddt.sizes());
  LOCKSTEP_CHECK(dbias.is_contiguous() && dbias.numel() == dt.size(2), "dbias ", dbias.sizes());
  if (!dt.is_cpu()) {
    const at::Tensor x = dt.to(at::kFloat) + bias, delta = at::softplus(x, 1, kLinear);
    const at::Tensor slope = at::sigmoid(x).masked_fill_(x.gt(kLinear), 1).masked_fill_(delta.lt(least).logical_or_(delta.gt(most)), 0);
    const at::Tensor gradient = ddelta * slope;
    dbias.add_(gradient.sum({0, 1}));
    ddt.copy_(gradient);
  } else if (dt.scalar_type() == at::kFloat) {
    backward<float>(dt, bias.const_data_ptr<float>(), limits_of(least, most), ddelta.const_data_ptr<float>(), dbias.data_ptr<float>(), ddt);
  } else {
    backward<c10::BFloat16>(dt, bias.const_data_ptr<float>(), limits_of(least, most), ddelta.const_data_ptr<float>(), dbias.data_ptr<float>(), ddt);
  }
}

}  // namespace lockstep::nn
