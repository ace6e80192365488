// The mathematics of the CUDA kernels, put together on the CPU as a kernel does it, against autograd and LibTorch.
#include "lockstep/nn/cuda_math.h"

#include <ATen/Context.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace lockstep::nn::cuda {
namespace {

class Math : public testing::Test {
 protected:
  void SetUp() override { at::manual_seed(1234); }
};

at::Tensor leaf(at::IntArrayRef shape) { return at::randn(shape).requires_grad_(true); }

// What autograd gives for `input` when `output` gets `dy`.
at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& dy) {
  return torch::autograd::grad({output}, {input}, {dy}, /*retain_graph=*/true)[0].contiguous();
}

void expect_near(const std::vector<float>& values, const at::Tensor& expected, float tolerance = 5e-6f) {
  ASSERT_EQ(static_cast<int64_t>(values.size()), expected.numel());
  const float* wanted = expected.const_data_ptr<float>();
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], wanted[i], tolerance * std::max(1.0f, std::abs(wanted[i]))) << i;
}

const float* data(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }

TEST_F(Math, GeluBackward) {
  const at::Tensor x = at::randn({500}).mul_(4).requires_grad_(true), dy = at::randn({500});
  std::vector<float> values;
  for (int i = 0; i < 500; ++i) values.push_back(gelu_backward(data(dy)[i], data(x)[i]));
  expect_near(values, gradient(at::gelu(x, "tanh"), x, dy));
}

TEST_F(Math, SwiGluAndItsBackward) {
  const at::Tensor gate = at::randn({500}).mul_(4).requires_grad_(true), up = leaf({500}), dy = at::randn({500});
  const at::Tensor y = at::silu(gate).mul(up);
  std::vector<float> forward, dgate, dup;
  for (int i = 0; i < 500; ++i) {
    forward.push_back(swiglu(data(gate)[i], data(up)[i]));
    const Pair both = swiglu_backward(data(dy)[i], data(gate)[i], data(up)[i]);
    dgate.push_back(both.first);
    dup.push_back(both.second);
  }
  expect_near(forward, y.detach());
  expect_near(dgate, gradient(y, gate, dy));
  expect_near(dup, gradient(y, up, dy));
}

TEST_F(Math, RotationTurnsByTheAngle) {
  for (const float angle : {0.0f, 0.3f, 2.0f, -1.1f}) {
    const Pair turned = rotate({3.0f, 4.0f}, std::cos(angle), std::sin(angle));
    EXPECT_NEAR(std::hypot(turned.first, turned.second), 5.0f, 1e-5f);
    EXPECT_NEAR(std::atan2(turned.second, turned.first), std::remainder(std::atan2(4.0, 3.0) + angle, 2 * M_PI), 1e-5);
    const Pair back = rotate(turned, std::cos(angle), -std::sin(angle));
    EXPECT_NEAR(back.first, 3.0f, 1e-5f);
  }
}

// A row, as norm.cu adds it up.
void expect_norm_backward(bool layer_norm) {
  constexpr int64_t size = 97;
  const at::Tensor x = leaf({size}), weight = at::randn({size}), bias = at::randn({size}), dy = at::randn({size});
  constexpr double eps = 1e-5;
  const at::Tensor y = layer_norm ? at::layer_norm(x, {size}, weight, bias, eps) : at::rms_norm(x, {size}, weight, eps);
  const at::Tensor plain = x.detach();
  const float mean = layer_norm ? plain.mean().item<float>() : 0.0f;
  const float rstd = 1 / std::sqrt(plain.sub(mean).square().mean().item<float>() + static_cast<float>(eps));
  double sum_g = 0, sum_gx = 0;
  for (int64_t i = 0; i < size; ++i) {
    const float g = data(dy)[i] * data(weight)[i];
    sum_g += g;
    sum_gx += g * (data(plain)[i] - mean) * rstd;
  }
  std::vector<float> values;
  for (int64_t i = 0; i < size; ++i)
    values.push_back(norm_backward(data(dy)[i] * data(weight)[i], (data(plain)[i] - mean) * rstd, rstd,
                                   layer_norm ? static_cast<float>(sum_g / size) : 0.0f,
                                   static_cast<float>(sum_gx / size)));
  expect_near(values, gradient(y, x, dy), 5e-6f);
}

TEST_F(Math, LayerNormBackward) { expect_norm_backward(true); }
TEST_F(Math, RmsNormBackward) { expect_norm_backward(false); }

// A row of logits dealt out to `threads` as cross_entropy.cu does, `width` at a time, then merged in pairs.
SoftmaxSum sum_of(const std::vector<float>& row, size_t threads, size_t width) {
  std::vector<SoftmaxSum> of_thread(threads, SoftmaxSum{-INFINITY, 0});
  for (size_t i = 0; i * width < row.size(); ++i) {
    SoftmaxSum& sum = of_thread[i % threads];
    sum = include(sum, row.data() + i * width, static_cast<int>(std::min(width, row.size() - i * width)));
  }
  for (size_t step = threads / 2; step > 0; step /= 2)
    for (size_t i = 0; i < step; ++i) of_thread[i] = merge(of_thread[i], of_thread[i + step]);
  return of_thread[0];
}

TEST_F(Math, CrossEntropyInOnePass) {
  for (const int64_t size : {1, 7, 64, 1000})
    for (const double spread : {1.0, 60.0}) {
      const at::Tensor logits = at::randn({1, size}).mul_(spread).requires_grad_(true);
      const at::Tensor target = at::randint(size, {1}, at::kLong);
      const at::Tensor loss = at::cross_entropy_loss(logits, target);
      const at::Tensor expected = gradient(loss, logits, at::full({}, 1.0));
      const int64_t column = target.item<int64_t>();
      const std::vector<float> row(data(logits), data(logits) + size);
      for (const size_t width : {1, 4}) {
        const SoftmaxSum sum = sum_of(row, 32, width);
        EXPECT_NEAR(cross_entropy(row[static_cast<size_t>(column)], sum), loss.item<float>(),
                    2e-5f * std::max(1.0f, loss.item<float>()));
        std::vector<float> values;
        for (int64_t i = 0; i < size; ++i)
          values.push_back(softmax(row[static_cast<size_t>(i)], sum) - (i == column ? 1.0f : 0.0f));
        expect_near(values, expected, 5e-6f);
      }
    }
}

TEST_F(Math, ASoftmaxThatIsNotFiniteIsNotHidden) {
  const SoftmaxSum masked = sum_of({-INFINITY, 2.0f, -INFINITY, 1.0f}, 2, 1);
  EXPECT_FLOAT_EQ(cross_entropy(2.0f, masked), std::log(1 + std::exp(-1.0f)));
  for (const float bad : {NAN, INFINITY})
    for (const size_t width : {1, 4})
      for (const std::vector<float>& row : {std::vector<float>{1, bad, 2, 3, 4}, {bad, -INFINITY}, {1, 2, 3, bad}})
        EXPECT_FALSE(std::isfinite(cross_entropy(1.0f, sum_of(row, 4, width)))) << bad;
  EXPECT_FALSE(std::isfinite(cross_entropy(-INFINITY, sum_of({-INFINITY, -INFINITY}, 2, 1))));
}

TEST_F(Math, AdamWIsLibTorchs) {
  constexpr int64_t size = 100;
  at::Tensor value = at::randn({size}), m = at::randn({size}).mul_(0.1), v = at::randn({size}).square_();
  for (int step_number = 1; step_number <= 3; ++step_number) {
    const at::Tensor grad = at::randn({size});
    const AdamWStep step{.lr = 1e-2f, .eps = 1e-8f, .take1 = 0.1f, .keep2 = 0.95f, .take2 = 0.05f, .weight_decay = 0.1f,
                         .bias1 = static_cast<float>(1 - std::pow(0.9, step_number)),
                         .root_bias2 = static_cast<float>(std::sqrt(1 - std::pow(0.95, step_number)))};
    std::vector<float> values, ms, vs;
    for (int64_t i = 0; i < size; ++i) {
      const AdamWElement next = adamw({data(value)[i], data(m)[i], data(v)[i]}, 0.5f * data(grad)[i], step);
      values.push_back(next.value);
      ms.push_back(next.exp_avg);
      vs.push_back(next.exp_avg_sq);
    }
    at::_fused_adamw_({value}, {grad}, {m}, {v}, {}, {at::full({}, static_cast<double>(step_number))}, 1e-2, 0.9, 0.95, 0.1,
                      1e-8, false, false, at::full({}, 2.0));
    expect_near(values, value);
    expect_near(ms, m);
    expect_near(vs, v);
  }
}

}  // namespace
}  // namespace lockstep::nn::cuda
