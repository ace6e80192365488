// Branches of a forward function: what autograd makes of it in halves, and who owns what comes out.
#include "lockstep/nn/autograd_branch.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/nn/mlp.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr int64_t kModel = 6, kInner = 10;

at::Tensor mlp(const std::vector<at::Tensor>& p, const at::Tensor& x) { return at::linear(at::gelu(at::linear(x, p[0]), "tanh"), p[1]); }

std::vector<Parameter> mlp_parameters(at::ScalarType dtype = at::kFloat) {
  return {parameter("up", {kInner, kModel}, 1, dtype), parameter("down", {kModel, kInner}, 1, dtype)};
}

at::Tensor some(std::string_view name, at::ScalarType dtype = at::kFloat) { return random(name, {2, 5, kModel}).to(dtype); }

// Two microbatches in flight, as a pipeline has them, and I apart from W.
void compare_with_mlp(at::ScalarType dtype, double bound) {
  const std::vector<Parameter> own = mlp_parameters(dtype), expected = mlp_parameters(dtype);
  AutogradBranch branch(mlp, own, {.name = "mlp", .by_token = true});
  Mlp twin(std::make_unique<Linear>(expected[0]), std::make_unique<GeluTanh>(), std::make_unique<Linear>(expected[1]));
  const at::Tensor x[2] = {some("x0", dtype), some("x1", dtype)}, dy[2] = {some("dy0", dtype), some("dy1", dtype)};
  std::unique_ptr<Branch::Saved> saved[2], twin_saved[2];
  for (const int m : {0, 1}) {
    saved[m] = branch.new_saved(), twin_saved[m] = twin.new_saved();
    const at::Tensor y = branch.forward(x[m], saved[m].get());
    expect_close(y, twin.forward(x[m], twin_saved[m].get()), "y", bound);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_TRUE(branch.forward(x[m], nullptr).equal(y)) << "without gradients";
    at::Tensor(y).fill_(7);  // the block's own
  }
  for (const int m : {1, 0}) {
    const at::Tensor before = own[0].grad.clone();
    const at::Tensor dx = m == 0 ? branch.backward_input(dy[m], *saved[m]) : branch.start_backward_input(dy[m], *saved[m])();
    expect_close(dx, twin.backward_input(dy[m], *twin_saved[m]), "dx", bound);
    EXPECT_TRUE(own[0].grad.equal(before)) << "I touched W";
    branch.backward_weight(*saved[m]);
    twin.backward_weight(*twin_saved[m]);
  }
  for (size_t i = 0; i < own.size(); ++i) {
    expect_close(own[i].grad, expected[i].grad, "gradient", bound);
    EXPECT_FALSE(own[i].value.requires_grad());
  }
}

TEST(AutogradBranch, IsTheLayerThatItsFunctionSays) {
  compare_with_mlp(at::kFloat, 1e-5);
  compare_with_mlp(at::kBFloat16, 0.02);
}

TEST(AutogradBranch, ComputesTheSameBitsAgain) {
  const at::Tensor x = some("x"), dy = some("dy");
  std::vector<at::Tensor> dx, grads;
  for (const char* mode : {"none", "full", "selective"}) {
    const std::vector<Parameter> own = mlp_parameters();
    AutogradBranch branch(mlp, own, {.name = "mlp"});
    const std::unique_ptr<Branch::Saved> saved = branch.new_saved();
    if (std::string_view(mode) == "full")
      branch.recompute(x, *saved, {.count = 2, .length = 5});
    else
      branch.forward(x, saved.get());
    if (std::string_view(mode) == "selective") branch.forget(*saved), branch.restore(x, *saved);
    dx.push_back(branch.backward_input(dy, *saved));
    branch.backward_weight(*saved);
    grads.push_back(own[0].grad);
    EXPECT_TRUE(dx.back().equal(dx[0]) && grads.back().equal(grads[0])) << mode;
  }
}

// Functions whose graph keeps y, or whose gradients are dy itself: what comes out may be written into all the same.
TEST(AutogradBranch, HandsOutWhatNobodyElseHas) {
  const auto check = [](const ForwardFunction& function, std::vector<Parameter> own, const char* what) {
    AutogradBranch branch(function, own, {.name = what});
    std::vector<at::Tensor> leaves;
    for (const Parameter& p : own) leaves.push_back(leaf(p.value));
    const at::Tensor x = some("x"), dy = some("dy"), kept_x = x.clone(), kept_dy = dy.clone(), leaf_x = leaf(x);
    const at::Tensor expected = function(leaves, leaf_x);
    if (expected.requires_grad()) expected.backward(dy);
    const std::unique_ptr<Branch::Saved> saved = branch.new_saved();
    at::Tensor y = branch.forward(x, saved.get());
    expect_close(y, expected, what);
    y.fill_(3);
    at::Tensor alone = branch.forward(x, nullptr);
    alone.fill_(5);
    EXPECT_TRUE(x.equal(kept_x)) << what;
    at::Tensor dx = branch.backward_input(dy, *saved);
    expect_close(dx, leaf_x.grad().defined() ? leaf_x.grad() : at::zeros(x.sizes()), what);
    EXPECT_TRUE(dx.is_contiguous()) << what;
    dx.fill_(9);
    EXPECT_TRUE(dy.equal(kept_dy)) << what;
    at::Tensor(dy).fill_(11);
    branch.backward_weight(*saved);
    for (size_t i = 0; i < own.size(); ++i)
      expect_close(own[i].grad, leaves[i].grad().defined() ? leaves[i].grad() : at::zeros(own[i].grad.sizes()), what);
  };
  using Tensors = const std::vector<at::Tensor>&;
  check([](Tensors, const at::Tensor& x) { return at::tanh(x); }, {}, "a graph that keeps y");
  check([](Tensors, const at::Tensor& x) { return x; }, {}, "x itself");
  check([](Tensors, const at::Tensor& x) { return x.view({5, 2, kModel}).view({2, 5, kModel}); }, {}, "a view of x");
  check([](Tensors p, const at::Tensor& x) { return x + p[0] + p[1]; }, {parameter("a", {2, 5, kModel}), parameter("b", {2, 5, kModel})},
        "gradients that are dy");
  check([](Tensors p, const at::Tensor& x) { return x * p[0]; }, {parameter("a", {kModel}), parameter("unused", {3})}, "one that is not used");
  check([](Tensors p, const at::Tensor& x) { return p[0].expand(x.sizes()).contiguous(); }, {parameter("a", {kModel})}, "no x");
  check([](Tensors, const at::Tensor& x) { return at::zeros(x.sizes()); }, {}, "a constant");
  check([](Tensors, const at::Tensor& x) { return x.sum(1, true).expand(x.sizes()); }, {}, "a sum over tokens");
}

// ZeRO takes values away between forward and backward, and writes them anew into the same memory.
TEST(AutogradBranch, ValuesMayBeWrittenAnewInBetween) {
  const std::vector<Parameter> own = mlp_parameters(), expected = mlp_parameters();
  AutogradBranch branch(mlp, own, {.name = "mlp"}), twin(mlp, expected, {.name = "twin"});
  const std::unique_ptr<Branch::Saved> saved = branch.new_saved(), twin_saved = twin.new_saved();
  branch.forward(some("x"), saved.get());
  twin.forward(some("x"), twin_saved.get());
  for (const Parameter& p : own) {
    const at::Tensor value = p.value.clone();
    at::Tensor(p.value).zero_();
    at::Tensor(p.value).copy_(value);
  }
  EXPECT_TRUE(branch.backward_input(some("dy"), *saved).equal(twin.backward_input(some("dy"), *twin_saved)));
}

TEST(AutogradBranch, RefusesWhatItsFunctionCannotDo) {
  const TokenPlaces places{};
  AutogradBranch whole(mlp, mlp_parameters(), {.name = "blocks.0.own"}), by_token(mlp, mlp_parameters(), {.name = "own", .by_token = true});
  const Sequences parts{.count = 2, .length = 5, .valid = {}, .places = &places};
  EXPECT_THAT([&] { whole.forward(some("x"), nullptr, parts); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("blocks.0.own is a function of whole sequences")));
  EXPECT_THROW(whole.recompute(some("x"), *whole.new_saved(), parts), ConfigError);
  EXPECT_THROW(whole.decode(some("x"), {}, {}), ConfigError);
  EXPECT_TRUE(by_token.forward(some("x"), nullptr, parts).equal(by_token.decode(some("x"), {}, {})));
  AutogradBranch narrower([](const std::vector<at::Tensor>&, const at::Tensor& x) { return x.narrow(2, 0, 2); }, {}, {.name = "narrower"});
  EXPECT_THAT([&] { narrower.forward(some("x"), nullptr); }, ::testing::ThrowsMessage<InternalError>(::testing::HasSubstr("[2, 5, 2]")));
}

// As ranks in one process do.
TEST(AutogradBranch, BranchesRunBesideEachOther) {
  std::vector<at::Tensor> dx(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < dx.size(); ++i)
    threads.emplace_back([&dx, i] {
      AutogradBranch branch(mlp, mlp_parameters(), {.name = "mlp"});
      for (int step = 0; step < 20; ++step) {
        const std::unique_ptr<Branch::Saved> saved = branch.new_saved();
        branch.forward(some("x"), saved.get());
        dx[i] = branch.backward_input(some("dy"), *saved);
        branch.backward_weight(*saved);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& one : dx) EXPECT_TRUE(one.equal(dx[0]));
}

}  // namespace
}  // namespace lockstep::nn
