// Nonlinearities against LibTorch's autograd; GELU by erf also far out, where its tail is small.
#include "lockstep/nn/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::random;

at::Tensor reference(arch::Activation kind, const at::Tensor& h) {
  const int64_t size = h.size(-1) / 2;
  const auto gate = [&] { return h.narrow(-1, 0, size); };
  const auto up = [&] { return h.narrow(-1, size, size); };
  switch (kind) {
    case arch::Activation::kGeluTanh:
      return at::gelu(h, "tanh");
    case arch::Activation::kGelu:
      return at::gelu(h, "none");
    case arch::Activation::kRelu2:
      return at::relu(h).square();
    case arch::Activation::kSwiGlu:
      return at::silu(gate()) * up();
    case arch::Activation::kGeGlu:
      return at::gelu(gate(), "tanh") * up();
  }
  return {};
}

TEST(Activation, MatchesAutograd) {
  using enum arch::Activation;
  for (const arch::Activation kind : {kGeluTanh, kGelu, kRelu2, kSwiGlu, kGeGlu})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(cat("kind ", static_cast<int>(kind), " ", dtype));
      const double bound = dtype == at::kFloat ? 1e-5 : 0.02;
      const at::Tensor h = random("h", {3, 11, 46}, 2).to(dtype), expected_h = leaf(h), expected = reference(kind, expected_h);
      const at::Tensor dy = random("dy", expected.sizes()).to(dtype);
      expected.backward(dy.to(at::kFloat));
      const std::unique_ptr<Activation> activation = new_activation(kind);
      expect_close(activation->forward(h), expected, "y", bound);
      const at::Tensor dh = activation->backward(dy, h);
      expect_close(dh, expected_h.grad(), "dh", bound);
      EXPECT_EQ(dh.data_ptr(), h.data_ptr()) << "the gradient takes the place of h";
    }
}

// Each value by itself: one of 1e-14 is as exact as one of 1.
TEST(Activation, GeluByErfIsExactInItsTail) {
  const at::Tensor h = at::linspace(-8, 8, 4001, at::kFloat), y = Gelu().forward(h);
  for (int64_t i = 0; i < h.numel(); ++i) {
    const double x = static_cast<double>(h.const_data_ptr<float>()[i]), expected = x * 0.5 * std::erfc(-x / std::sqrt(2.0));
    EXPECT_NEAR(static_cast<double>(y.const_data_ptr<float>()[i]), expected, 1e-5 * std::abs(expected)) << x;
  }
}

}  // namespace
}  // namespace lockstep::nn
