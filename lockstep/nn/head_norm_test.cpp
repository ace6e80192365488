// Norms of heads inside one projected tensor against LibTorch's autograd.
#include "lockstep/nn/head_norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/rsqrt.h>
#include <gtest/gtest.h>

#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr double kEps = 1e-2;  // large enough to be seen

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + kEps) * weight;
}

struct Case {
  int64_t heads = 3, kv_heads = 2, size = 6;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

void check(const Case& c) {
  const int64_t all = c.heads + 2 * c.kv_heads;
  const Parameter q_weight = parameter("q", {c.size}, 1, c.dtype), k_weight = parameter("k", {c.size}, 1, c.dtype);
  HeadNorm norm(q_weight, k_weight, kEps);
  const at::Tensor expected_q = leaf(q_weight.value), expected_k = leaf(k_weight.value);
  for (const char* name : {"first", "second"}) {  // gradients add up
    const at::Tensor x = random(name, {2, 5, all, c.size}).to(c.dtype), dy = random("dy", x.sizes()).to(c.dtype);
    const auto q_of = [&](const at::Tensor& heads) { return heads.narrow(2, 0, c.heads); };
    const auto k_of = [&](const at::Tensor& heads) { return heads.narrow(2, c.heads, c.kv_heads); };
    const auto v_of = [&](const at::Tensor& heads) { return heads.narrow(2, c.heads + c.kv_heads, c.kv_heads); };
    const at::Tensor expected_x = leaf(x);
    const at::Tensor expected =
        at::cat({reference(q_of(expected_x), expected_q), reference(k_of(expected_x), expected_k), v_of(expected_x)}, 2);
    expected.backward(dy.to(at::kFloat));

    at::Tensor y = x.clone(), again = x.clone(), dx = dy.clone();
    HeadNorm::Saved saved;
    norm.forward(q_of(y), k_of(y), &saved);
    norm.forward(q_of(again), k_of(again), nullptr);
    EXPECT_TRUE(again.equal(y));
    expect_close(y, expected, "y", c.bound);
    const at::Tensor before = q_weight.grad.clone();
    norm.backward_input(q_of(dx), k_of(dx), saved);
    EXPECT_TRUE(before.equal(q_weight.grad)) << "I touched W";
    expect_close(dx, expected_x.grad(), "dx", c.bound);
    norm.backward_weight(saved);
    EXPECT_FALSE(saved.q.x.defined() || saved.k.dy.defined());
  }
  expect_close(q_weight.grad, expected_q.grad(), "gradient of q's weight", c.bound);
  expect_close(k_weight.grad, expected_k.grad(), "gradient of k's weight", c.bound);
}

TEST(HeadNorm, MatchesAutograd) {
  check({});
  check({.heads = 1, .kv_heads = 1, .size = 32});
  check({.heads = 4, .kv_heads = 1, .size = 17});
  check({.heads = 4, .kv_heads = 2, .size = 64, .dtype = at::kBFloat16, .bound = 0.02});
}

}  // namespace
}  // namespace lockstep::nn
