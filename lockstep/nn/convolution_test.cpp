// The causal convolution of a state space, by the CPU's kernels and by LibTorch's operators, against its sum written out in fp64 and autograd.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/state_space_core.h"
#include "lockstep/nn/state_space_device.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

struct Path {
  std::string name;
  decltype(&convolve) forward;
  decltype(&convolve_backward_input) backward_input;
  decltype(&convolve_backward_weight) backward_weight;
};
const Path kPaths[] = {{"kernels", convolve, convolve_backward_input, convolve_backward_weight},
                       {"operators", convolve_device, convolve_backward_input_device, convolve_backward_weight_device}};

constexpr int64_t kBatch = 2;

struct Case {
  int64_t tokens = 12, channels = 150, width = 4, pieces = 1;
  std::vector<int64_t> begins{};
  bool bias = true, before = true;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

Convolution convolution_of(const Case& c) {
  Convolution of{.x = random("x", {kBatch, c.tokens, c.channels + 5}).to(c.dtype).narrow(2, 2, c.channels),
                 .weight = random("weight", {c.channels, c.width}).to(c.dtype),
                 .bias = {}};
  of.pieces = c.pieces;
  if (c.bias) of.bias = random("bias", {c.channels}).to(c.dtype);
  if (c.before) of.before = random("before", {kBatch, c.pieces, c.width - 1, c.channels}).to(c.dtype);
  if (!c.begins.empty()) of.begins = at::zeros({kBatch, c.tokens}, at::kByte);
  for (const int64_t begin : c.begins) of.begins.select(1, begin).fill_(1);
  return of;
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::kDouble, false, /*copy=*/true).requires_grad_(true); }

// Token by token: of its piece's columns those that no document's begin separates from it.
struct Reference {
  at::Tensor x, weight, bias, before, y;
};
Reference reference_of(const Convolution& of) {
  const int64_t length = of.x.size(1) / of.pieces, width = of.weight.size(1), channels = of.x.size(2);
  Reference r{.x = wide(of.x), .weight = wide(of.weight), .bias = wide(of.bias.defined() ? of.bias : at::zeros({channels})),
              .before = wide(of.before.defined() ? of.before : at::zeros({kBatch, of.pieces, width - 1, channels})), .y = {}};
  std::vector<at::Tensor> outputs;
  for (int64_t t = 0; t < of.x.size(1); ++t) {
    at::Tensor sum = r.bias.expand({kBatch, channels});
    for (int64_t back = 0; back < width; ++back) {
      const int64_t place = t % length - back;
      const at::Tensor column = place >= 0 ? r.x.select(1, t - back) : r.before.select(1, t / length).select(1, width - 1 + place);
      sum = sum + column * r.weight.select(1, width - 1 - back);
      if (of.begins.defined() && of.begins[0][t - std::min(back, t % length)].item<int>()) break;
    }
    outputs.push_back(at::silu(sum));
  }
  r.y = at::stack(outputs, 1);
  return r;
}

void check(const Case& c) {
  SCOPED_TRACE(cat("T ", c.tokens, " C ", c.channels, " W ", c.width, " pieces ", c.pieces, " begins ", c.begins.size()));
  const Convolution of = convolution_of(c);
  const Reference r = reference_of(of);
  const at::Tensor dy = random("dy", of.x.sizes()).to(c.dtype);
  (r.y * dy.to(at::kDouble)).sum().backward();
  for (const Path& path : kPaths) {
    SCOPED_TRACE(path.name);
    expect_close(path.forward(of), r.y, "y", c.bound);
    const at::Tensor dweight = at::zeros(of.weight.sizes()) + 1, dbias = of.bias.defined() ? at::zeros({c.channels}) + 1 : at::Tensor();
    path.backward_weight(of, dy, dweight, dbias);
    expect_close(dweight - 1, r.weight.grad(), "dweight", c.bound);
    if (dbias.defined()) expect_close(dbias - 1, r.bias.grad(), "dbias", c.bound);
    const at::Tensor dbefore = c.before ? at::zeros(of.before.sizes()) : at::Tensor(), dx = dy.clone();
    path.backward_input(of, dx, {.dx = dx, .dbefore = dbefore});  // in place
    expect_close(dx, r.x.grad(), "dx", c.bound);
    if (dbefore.defined() && c.width > 1) expect_close(dbefore, r.before.grad(), "dbefore", c.bound);
  }
}

TEST(Convolution, MatchesAutograd) {
  for (const int64_t width : {1, 2, 4}) {
    check({.width = width});
    check({.width = width, .bias = false, .before = false});
    check({.tokens = 2, .channels = 3, .width = width});  // shorter than the window
  }
  check({.tokens = 600, .channels = 17});
}

TEST(Convolution, PiecesSeeTheColumnsBeforeThem) {
  check({.pieces = 2});
  check({.pieces = 6});
  check({.pieces = 3, .before = false});
}

TEST(Convolution, ADocumentSeesNoColumnBeforeIt) {
  check({.begins = {0, 5, 6, 11}, .before = false});
  check({.begins = {1, 5, 6, 11}});
  check({.width = 2, .begins = {3}});
  check({.pieces = 2, .begins = {1, 6}});
  check({.pieces = 3, .begins = {7}, .before = false});
}

TEST(Convolution, Bf16RoundsOperandsAndResultsAlone) { check({.pieces = 2, .begins = {4}, .dtype = at::kBFloat16, .bound = 4e-3}); }

}  // namespace
}  // namespace lockstep::nn
