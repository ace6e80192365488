// The clamped nonlinearity of experts against LibTorch's autograd in fp64.
#include "lockstep/nn/clamped_glu.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

constexpr double kLimit = 0.75;

// As transformers' GptOssExperts has it.
at::Tensor expected_of(const at::Tensor& h) {
  const int64_t size = h.size(-1) / 2;
  const at::Tensor gate = h.narrow(-1, 0, size).clamp_max(kLimit), up = h.narrow(-1, size, size).clamp(-kLimit, kLimit);
  return (up + 1) * (gate * at::sigmoid(gate * 1.702));
}

TEST(ClampedGlu, MatchesAutograd) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t size : {1, 16, 37}) {
      SCOPED_TRACE(cat(dtype, " ", size));
      const double bound = dtype == at::kFloat ? 1e-6 : 0.005;
      const at::Tensor h = random("h", {2, 9, 2 * size}).to(dtype), dy = random("dy", {2, 9, size}).to(dtype);
      const at::Tensor leaf = h.to(at::kDouble).requires_grad_(true);
      const at::Tensor y = expected_of(leaf);
      (y * dy.to(at::kDouble)).sum().backward();
      const at::Tensor at_bound = h.narrow(-1, size, size).abs().gt(kLimit);
      EXPECT_TRUE(at_bound.any().item<bool>() && !at_bound.all().item<bool>()) << "a part is clamped";
      const ClampedGlu activation(kLimit);
      expect_close(activation.forward(h), y, "y", bound);
      at::Tensor own = h.clone();
      const at::Tensor dh = activation.backward(dy, own);
      EXPECT_EQ(dh.data_ptr(), own.data_ptr()) << "the gradient takes the place of h";
      expect_close(dh, leaf.grad(), "dh", bound);
      EXPECT_TRUE(at::equal(dh.eq(0), leaf.grad().eq(0))) << "zero beyond a bound";
    }
}

// At the bound itself gradients pass, as LibTorch's do.
TEST(ClampedGlu, ABoundIsNotBeyondIt) {
  const at::Tensor h = at::tensor({kLimit, kLimit, -kLimit, 0.1}, at::kFloat).view({2, 2});
  at::Tensor leaf = h.to(at::kDouble).requires_grad_(true);
  expected_of(leaf).sum().backward();
  expect_close(ClampedGlu(kLimit).backward(at::tensor({1, 1}, at::kFloat).view({2, 1}), h.clone()), leaf.grad(), "dh", 1e-6);
}

TEST(ClampedGlu, NoRowsAndNoLimit) {
  const ClampedGlu activation(1);
  EXPECT_EQ(activation.forward(at::empty({0, 6}, at::kFloat)).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(activation.backward(at::empty({0, 3}, at::kFloat), at::empty({0, 6}, at::kFloat)).sizes(), at::IntArrayRef({0, 6}));
  EXPECT_THROW(ClampedGlu(0), InternalError);
}

}  // namespace
}  // namespace lockstep::nn
