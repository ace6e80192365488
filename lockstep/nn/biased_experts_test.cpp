// Experts with biases, a bias of the router's logits and the clamped nonlinearity against LibTorch's autograd in fp64 over a plain loop:
// token by token, each with its experts, as transformers' GptOssExperts computes them.
#include <ATen/ops/clamp.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/nn/experts.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::parameter;
using testing::random;

constexpr int64_t kExperts = 5, kEach = 2, kBatch = 2, kLength = 7, kWidth = 10, kInner = 6;
constexpr double kAux = 0.3, kZ = 0.2;

struct Case {
  std::string name;
  bool logit_bias = false, biases = false;
  double clamp = 0;
  config::Router router = config::Router::kSoftmaxAfterTopk;
  at::ScalarType dtype = at::kFloat;
  double bound = 2e-5;
};

const std::vector<Case> kCases = {
    {.name = "all", .logit_bias = true, .biases = true, .clamp = 0.6},
    {.name = "logit bias", .logit_bias = true},
    {.name = "biases", .biases = true},
    {.name = "clamp", .clamp = 0.6},
    {.name = "softmax", .logit_bias = true, .biases = true, .clamp = 0.6, .router = config::Router::kSoftmax},
    {.name = "bf16", .logit_bias = true, .biases = true, .clamp = 7, .dtype = at::kBFloat16, .bound = 0.03},
};

struct Layer {
  ExpertParameters parameters;
  std::unique_ptr<Experts> experts;

  explicit Layer(const Case& c) {
    ExpertShape shape;
    shape.sizes.count = kExperts;
    shape.sizes.per_token = kEach;
    shape.sizes.ffn = kInner;
    shape.sizes.router = c.router;
    shape.sizes.logit_bias = c.logit_bias;
    shape.sizes.biases = c.biases;
    shape.sizes.clamp = c.clamp;
    shape.moe.aux_coefficient = kAux;
    shape.moe.z_coefficient = kZ;
    parameters = {.router_weight = parameter("router", {kExperts, kWidth}, 0.5, c.dtype),
                  .router_bias = {},
                  .gate_up = parameter("gate_up", {kExperts * 2 * kInner, kWidth}, 0.3, c.dtype),
                  .down = parameter("down", {kExperts * kWidth, kInner}, 0.3, c.dtype)};
    if (c.logit_bias) parameters.logit_bias = parameter("logit_bias", {kExperts}, 0.5, c.dtype);
    if (c.biases) {
      parameters.gate_up_bias = parameter("gate_up_bias", {kExperts * 2 * kInner}, 0.3, c.dtype);
      parameters.down_bias = parameter("down_bias", {kExperts * kWidth}, 0.3, c.dtype);
    }
    experts = std::make_unique<Experts>(shape, parameters, nullptr, std::make_shared<ExpertExchange>());
  }
};

at::Tensor leaf64(const at::Tensor& value) { return value.to(at::kDouble, false, /*copy=*/true).requires_grad_(true); }
at::Tensor leaf64(const Parameter& parameter) { return parameter.defined() ? leaf64(parameter.value) : at::Tensor(); }

Sequences sequences() { return {.count = kBatch, .length = kLength, .valid = at::tensor({7.0, 3.0}, at::kDouble)}; }

// The plain loop.
struct Loop {
  at::Tensor x, router, logit_bias, gate_up, gate_up_bias, down, down_bias;  // leaves
  at::Tensor y, loss;
  int64_t clamped = 0, free = 0;  // elements of gate and up

  Loop(const Case& c, const ExpertParameters& p, const at::Tensor& value)
      : x(leaf64(value)), router(leaf64(p.router_weight)), logit_bias(leaf64(p.logit_bias)), gate_up(leaf64(p.gate_up)),
        gate_up_bias(leaf64(p.gate_up_bias)), down(leaf64(p.down)), down_bias(leaf64(p.down_bias)) {
    std::vector<at::Tensor> rows;
    loss = at::zeros({}, at::kDouble);
    for (int64_t b = 0; b < kBatch; ++b) {
      const double valid = sequences().valid[b].item<double>();
      at::Tensor probabilities = at::zeros({kExperts}, at::kDouble), counts = at::zeros({kExperts}, at::kDouble);
      for (int64_t s = 0; s < kLength; ++s) {
        at::Tensor logits = at::mv(router, x[b][s]);
        if (logit_bias.defined()) logits = logits + logit_bias;
        const auto [best, chosen] = logits.topk(kEach);
        const at::Tensor all = at::softmax(logits, 0);
        const at::Tensor weights = c.router == config::Router::kSoftmax ? all.index_select(0, chosen) : at::softmax(best, 0);
        at::Tensor sum = at::zeros({kWidth}, at::kDouble);
        for (int64_t i = 0; i < kEach; ++i) sum = sum + weights[i] * expert(c, chosen[i].item<int64_t>(), x[b][s]);
        rows.push_back(sum);
        probabilities = probabilities + all / static_cast<double>(kLength);
        counts.index_add_(0, chosen, at::ones({kEach}, at::kDouble));
        loss = loss + kZ * valid / static_cast<double>(kLength) * at::logsumexp(logits, {0}).square();
      }
      const at::Tensor shares = counts / static_cast<double>(kLength * kEach);
      loss = loss + kAux * valid * static_cast<double>(kExperts) * (shares * probabilities).sum();
    }
    y = at::stack(rows).view({kBatch, kLength, kWidth});
  }

  at::Tensor expert(const Case& c, int64_t e, const at::Tensor& row) {
    at::Tensor h = at::mv(gate_up.narrow(0, e * 2 * kInner, 2 * kInner), row);
    if (c.biases) h = h + gate_up_bias.narrow(0, e * 2 * kInner, 2 * kInner);
    at::Tensor gate = h.narrow(0, 0, kInner), up = h.narrow(0, kInner, kInner), inner;
    if (c.clamp > 0) {
      const int64_t beyond = gate.gt(c.clamp).sum().item<int64_t>() + up.abs().gt(c.clamp).sum().item<int64_t>();
      clamped += beyond;
      free += 2 * kInner - beyond;
      gate = gate.clamp_max(c.clamp);
      up = up.clamp(-c.clamp, c.clamp);
      inner = (up + 1) * (gate * at::sigmoid(gate * 1.702));
    } else {
      inner = at::silu(gate) * up;
    }
    const at::Tensor out = at::mv(down.narrow(0, e * kWidth, kWidth), inner);
    return c.biases ? out + down_bias.narrow(0, e * kWidth, kWidth) : out;
  }

  void backward(const at::Tensor& dy) { ((y * dy.to(at::kDouble)).sum() + loss).backward(); }

  void expect_gradients(const ExpertParameters& p, double bound) const {
    const auto expect = [&](const Parameter& of, const at::Tensor& leaf, const char* what) {
      ASSERT_EQ(of.defined(), leaf.defined()) << what;
      if (of.defined()) expect_close(of.grad, leaf.grad(), what, bound);
    };
    expect(p.router_weight, router, "router");
    expect(p.logit_bias, logit_bias, "logit bias");
    expect(p.gate_up, gate_up, "gate and up");
    expect(p.gate_up_bias, gate_up_bias, "biases of gate and up");
    expect(p.down, down, "down");
    expect(p.down_bias, down_bias, "bias of down");
  }
};

at::Tensor input(const Case& c, std::string_view name) { return random(name, {kBatch, kLength, kWidth}).to(c.dtype); }

TEST(BiasedExperts, MatchAutogradOfAPlainLoop) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Layer layer(c);
    const at::Tensor x = input(c, "x"), dy = input(c, "dy");
    Loop loop(c, layer.parameters, x);
    loop.backward(dy);
    if (c.clamp > 0 && c.clamp < 1) {
      EXPECT_GT(loop.clamped, loop.free / 20);
      EXPECT_GT(loop.free, loop.clamped);
    }
    expect_close(layer.experts->decode(x, {}, {}), loop.y, "y of generation", c.bound);
    const auto saved = layer.experts->new_saved();
    expect_close(layer.experts->forward(x, saved.get(), sequences()), loop.y, "y", c.bound);
    expect_close(layer.experts->backward_input(dy, *saved), loop.x.grad(), "dx", c.bound);
    layer.experts->backward_weight(*saved);
    loop.expect_gradients(layer.parameters, c.bound);
  }
}

std::vector<at::Tensor> gradients(const Case& c, bool again, bool in_parts) {
  Layer layer(c);
  const at::Tensor x = input(c, "x"), dy = input(c, "dy");
  const auto saved = layer.experts->new_saved();
  const auto run = [](DividedPass& pass) {
    pass.leave();
    pass.arrive();
    pass.run_experts();
    pass.leave();
    pass.arrive();
    return pass.finish();
  };
  at::Tensor dx;
  if (in_parts) {
    run(*layer.experts->begin_forward(x, saved.get(), sequences()));
    dx = run(*layer.experts->begin_backward_input(dy, *saved));
  } else {
    again ? layer.experts->recompute(x, *saved, sequences()) : void(layer.experts->forward(x, saved.get(), sequences()));
    dx = layer.experts->backward_input(dy, *saved);
  }
  layer.experts->backward_weight(*saved);
  const ExpertParameters& p = layer.parameters;
  return {dx, p.router_weight.grad, p.logit_bias.grad, p.gate_up.grad, p.gate_up_bias.grad, p.down.grad, p.down_bias.grad};
}

TEST(BiasedExperts, RecomputationAndPartsGiveTheSameBits) {
  const Case& c = kCases.front();
  const std::vector<at::Tensor> expected = gradients(c, false, false);
  for (const auto& [again, in_parts] : {std::pair(true, false), std::pair(false, true)}) {
    const std::vector<at::Tensor> found = gradients(c, again, in_parts);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i << (again ? " again" : " in parts");
  }
}

TEST(BiasedExperts, WantTheBiasesThatTheirSizesSay) {
  ExpertShape shape;
  shape.sizes.count = kExperts;
  shape.sizes.ffn = kInner;
  shape.sizes.biases = true;
  const ExpertParameters parameters = Layer({.name = ""}).parameters;
  EXPECT_THROW(Experts(shape, parameters, nullptr, std::make_shared<ExpertExchange>()), InternalError);
}

}  // namespace
}  // namespace lockstep::nn
