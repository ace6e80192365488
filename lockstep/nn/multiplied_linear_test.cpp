// A linear whose outputs are multiplied, and the factors of a gated norm and of logits, against LibTorch's autograd.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "lockstep/nn/gated_norm.h"
#include "lockstep/nn/head.h"
#include "lockstep/nn/multiplied_linear.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

TEST(MultipliedLinear, MatchesAutograd) {
  const Parameter weight = parameter("w", {9, 6}), bias = parameter("b", {9});
  const auto linear = multiplied(std::make_unique<Linear>(weight, bias), {{4, 0.5}, {2, 1}, {3, -3}});
  const at::Tensor x = random("x", {2, 5, 6}), dy = random("dy", {2, 5, 9});
  const at::Tensor factors = at::cat({at::full({4}, 0.5), at::full({2}, 1.0), at::full({3}, -3.0)});
  const at::Tensor in = leaf(x), w = leaf(weight.value), b = leaf(bias.value), expected = at::linear(in, w, b) * factors;
  expected.backward(dy);
  for (int pass = 1; pass <= 2; ++pass) {  // gradients add up
    Linear::Saved saved;
    expect_close(linear->forward(x, &saved), expected, "y");
    expect_close(pass == 1 ? linear->backward_input(dy.clone(), saved) : linear->start_backward_input(dy.clone(), saved)(), in.grad(), "dx");
    linear->backward_weight(saved);
    expect_close(weight.grad, w.grad() * pass, "gradient of the weight");
    expect_close(bias.grad, b.grad() * pass, "gradient of the bias");
  }
}

TEST(MultipliedLinear, OfOnesIsTheLinearItself) {
  auto linear = std::make_unique<Linear>(parameter("w", {3, 2}));
  const Linear* const address = linear.get();
  EXPECT_EQ(multiplied(std::move(linear), {{1, 1}, {2, 1}}).get(), address);
}

TEST(MultipliedLinear, ColumnsMustBeAllOfThem) {
  const auto linear = multiplied(std::make_unique<Linear>(parameter("w", {3, 2})), {{2, 4}});
  EXPECT_THROW(linear->forward(random("x", {1, 2}), nullptr), InternalError);
}

TEST(Factor, OfAGatedNormMatchesAutograd) {
  for (const bool normed : {true, false}) {
    const Parameter weight = normed ? parameter("w", {6}) : Parameter();
    GatedNorm norm(weight, normed ? 1 : 0, normed ? 6 : 0, 1e-3, nullptr, 0.25);
    const at::Tensor x = random("x", {5, 6}), z = random("z", {5, 6}), dout = random("dout", {5, 6}), dz = at::empty({5, 6});
    const at::Tensor in = leaf(x), gate = leaf(z), w = normed ? leaf(weight.value) : at::Tensor();
    at::Tensor expected = in * at::silu(gate);
    if (normed) expected = expected * at::rsqrt(expected.square().mean(-1, true) + 1e-3) * w;
    expected = expected * 0.25;
    expected.backward(dout);
    GatedNorm::Saved saved;
    expect_close(norm.forward(x, z, &saved), expected, "out");
    expect_close(norm.backward_input(dout.clone(), saved, dz), in.grad(), "dx");
    expect_close(dz, gate.grad(), "dz");
    norm.backward_weight(saved);
    if (normed) expect_close(weight.grad, w.grad(), "gradient of the weight");
  }
}

TEST(Factor, OfLogitsMatchesAutograd) {
  const Parameter norm_weight = parameter("n", {6}), weight = parameter("w", {11, 6});
  Head head(std::make_unique<RmsNorm>(norm_weight, 1e-3), weight, /*chunk_rows=*/3, 0.125);
  const at::Tensor x = random("x", {2, 4, 6});
  const at::Tensor in = leaf(x), n = leaf(norm_weight.value), w = leaf(weight.value);
  const at::Tensor logits = at::linear(in * at::rsqrt(in.square().mean(-1, true) + 1e-3) * n, w) * 0.125;
  expect_close(head.logits(x), logits, "logits");
  const Microbatch microbatch{.tokens = at::zeros({2, 4}, at::kLong), .targets = at::arange(8, at::kLong).view({2, 4})};
  const at::Tensor loss = at::cross_entropy_loss(logits.view({8, 11}), microbatch.targets.view({8}), {}, at::Reduction::Sum);
  loss.backward();
  expect_close(head.forward(x, microbatch, nullptr), loss, "loss");
  std::unique_ptr<Saved> saved;
  head.forward(x, microbatch, &saved);
  expect_close(head.backward_input({}, *saved), in.grad(), "dx");
  expect_close(saved->loss, loss, "loss beside the gradient");
  head.backward_weight(*saved);
  expect_close(weight.grad, w.grad(), "gradient of the projection");
  expect_close(norm_weight.grad, n.grad(), "gradient of the norm");
}

}  // namespace
}  // namespace lockstep::nn
