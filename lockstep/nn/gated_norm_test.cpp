// The gated norm against its formula and LibTorch's autograd.
#include "lockstep/nn/gated_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "lockstep/nn/gated_norm_device.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::leaf;
using testing::parameter;
using testing::random;

constexpr double kEps = 1e-2;  // large enough to be seen
constexpr int64_t kRows = 19;

at::Tensor reference(const at::Tensor& x, const at::Tensor& z, const at::Tensor& weight, int64_t groups) {
  const at::Tensor y = x * at::silu(z);
  if (groups == 0) return y;
  const at::Tensor parts = y.view({x.size(0), groups, -1});
  return (parts * at::rsqrt(parts.square().mean(-1, true) + kEps)).view(x.sizes()) * weight;
}

// Views of a wider tensor.
at::Tensor columns(std::string_view name, int64_t n, at::ScalarType dtype) { return random(name, {kRows, n + 7}).to(dtype).narrow(1, 3, n); }

struct Case {
  int64_t columns = 20, groups = 1;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

void check(const Case& c) {
  const Parameter weight = c.groups > 0 ? parameter("weight", {c.columns}, 1, c.dtype) : Parameter{};
  GatedNorm norm(weight, c.groups, c.groups > 0 ? c.columns / c.groups : 0, kEps, nullptr);
  const at::Tensor expected_weight = c.groups > 0 ? leaf(weight.value) : at::Tensor();
  for (int turn = 0; turn < 2; ++turn) {  // gradients add up
    const at::Tensor x = columns("x", c.columns, c.dtype), z = columns("z", c.columns, c.dtype), dout = columns("dout", c.columns, c.dtype);
    const at::Tensor expected_x = leaf(x), expected_z = leaf(z);
    const at::Tensor expected = reference(expected_x, expected_z, expected_weight, c.groups);
    expected.backward(dout.to(at::kFloat));

    GatedNorm::Saved saved;
    const at::Tensor out = norm.forward(x, z, &saved);
    EXPECT_TRUE(out.is_contiguous());
    EXPECT_TRUE(norm.forward(x, z, nullptr).equal(out));
    expect_close(out, expected, "out", c.bound);
    const at::Tensor dz = at::zeros({kRows, 2 * c.columns}, x.options()).narrow(1, c.columns, c.columns);
    const at::Tensor before = c.groups > 0 ? weight.grad.clone() : at::Tensor();
    const at::Tensor dx = norm.backward_input(dout, saved, dz);
    if (c.groups > 0) {
      EXPECT_TRUE(before.equal(weight.grad)) << "I touched W";
    }
    expect_close(dx, expected_x.grad(), "dx", c.bound);
    expect_close(dz, expected_z.grad(), "dz", c.bound);

    const GatedRows rows{.x = x, .z = z, .weight = weight.value, .groups = c.groups};
    at::Tensor shares, dz_by_operators = at::zeros(x.sizes(), x.options());
    if (c.groups > 0) {
      expect_close(gated_squares_device(rows), gated_squares_cpu(rows), "squares by operators");
      expect_close(gated_along_device(rows, dout), gated_along_cpu(rows, dout), "sums along dout by operators");
      shares = gated_along_cpu(rows, dout) * saved.rstd.square() * c.groups / c.columns;
      const at::Tensor of_kernels = at::zeros({c.columns}), of_operators = at::zeros({c.columns});
      gated_backward_weight_cpu(rows, saved.rstd, dout, of_kernels);
      gated_backward_weight_device(rows, saved.rstd, dout, of_operators);
      expect_close(of_operators, of_kernels, "dweight by operators");
    }
    expect_close(gated_outputs_device(rows, saved.rstd), expected, "out by operators", c.bound);
    expect_close(gated_backward_device(rows, saved.rstd, shares, dout, dz_by_operators), expected_x.grad(), "dx by operators", c.bound);
    expect_close(dz_by_operators, expected_z.grad(), "dz by operators", c.bound);

    norm.backward_weight(saved);
    EXPECT_FALSE(saved.x.defined() || saved.dout.defined());
  }
  if (c.groups > 0) expect_close(weight.grad, expected_weight.grad(), "gradient of the weight", c.bound);
}

TEST(GatedNorm, MatchesAutograd) {
  check({});
  check({.columns = 34, .groups = 2});
  check({.columns = 96, .groups = 3});
  check({.columns = 64, .groups = 2, .dtype = at::kBFloat16, .bound = 0.01});
}

TEST(GatedNorm, WithoutGroupsIsTheGate) {
  check({.columns = 21, .groups = 0});
  check({.columns = 21, .groups = 0, .dtype = at::kBFloat16, .bound = 0.01});
}

// What the columns elsewhere add.
struct OtherColumns : RowSums {
  OtherColumns(at::Tensor forward_sums, at::Tensor backward_sums) : forward(std::move(forward_sums)), backward(std::move(backward_sums)) {}
  void sum_forward(const at::Tensor& numbers) override { numbers.add_(forward); }
  void sum_backward(const at::Tensor& numbers) override { numbers.add_(backward); }
  at::Tensor forward, backward;  // [rows, 1]
};

TEST(GatedNorm, AGroupMayLieInTwoPlaces) {
  constexpr int64_t kColumns = 40, kHalf = kColumns / 2;
  const at::Tensor x = random("x", {kRows, kColumns}), z = random("z", {kRows, kColumns}), dout = random("dout", {kRows, kColumns});
  const Parameter weight = parameter("weight", {kColumns});
  const at::Tensor expected_x = leaf(x), expected_z = leaf(z), expected_weight = leaf(weight.value);
  const at::Tensor expected = reference(expected_x, expected_z, expected_weight, 1);
  expected.backward(dout);
  for (const int64_t begin : {int64_t{0}, kHalf}) {
    const auto here = [&](const at::Tensor& of) { return of.narrow(-1, begin, kHalf); };
    const auto there = [&](const at::Tensor& of) { return of.narrow(-1, kHalf - begin, kHalf); };
    const at::Tensor y = there(x) * at::silu(there(z));
    GatedNorm norm({.value = here(weight.value), .grad = here(weight.grad)}, 1, kColumns, kEps,
                   std::make_unique<OtherColumns>(y.square().sum(-1, true), (there(dout) * there(weight.value) * y).sum(-1, true)));
    GatedNorm::Saved saved;
    expect_close(norm.forward(here(x), here(z), &saved), here(expected), "out");
    const at::Tensor dz = at::empty({kRows, kHalf});
    expect_close(norm.backward_input(here(dout), saved, dz), here(expected_x.grad()), "dx");
    expect_close(dz, here(expected_z.grad()), "dz");
    norm.backward_weight(saved);
  }
  expect_close(weight.grad, expected_weight.grad(), "gradient of the weight");
}

}  // namespace
}  // namespace lockstep::nn
