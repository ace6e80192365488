// Biases of groups, and sums over the rows of each, against one group after the other.
#include "lockstep/nn/grouped_bias.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "lockstep/nn/grouped.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

struct Case {
  std::vector<int64_t> sizes;
  int64_t depth = 0, columns = 0, first = 0, width = 0;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

const std::vector<Case> kCases = {
    {.sizes = {3, 0, 1, 20, 0}, .depth = 12, .columns = 7, .width = 7},
    {.sizes = {0, 0, 0}, .depth = 8, .columns = 4, .width = 4},
    {.sizes = {5, 5, 5}, .depth = 8, .columns = 6, .width = 6},
    {.sizes = {16, 700, 2, 130}, .depth = 40, .columns = 600, .first = 500, .width = 77},  // over the border of a tile
    {.sizes = {16, 700, 2, 130}, .depth = 40, .columns = 600, .first = 600, .width = 0},
    {.sizes = {64, 0, 65, 5, 530}, .depth = 48, .columns = 520, .first = 1, .width = 519, .dtype = at::kBFloat16, .bound = 0.02},
};

int64_t rows_of(const Case& c) { return std::accumulate(c.sizes.begin(), c.sizes.end(), int64_t{0}); }

// body(g, first row, rows)
template <typename Body>
void each_group(const Case& c, const Body& body) {
  int64_t begin = 0;
  for (size_t g = 0; g < c.sizes.size(); begin += c.sizes[g++]) body(static_cast<int64_t>(g), begin, c.sizes[g]);
}

TEST(GroupedBias, IsAddedToTheProductsOfItsGroup) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(cat(c.columns, " columns, ", c.width, " from ", c.first));
    const auto groups = std::ssize(c.sizes);
    const at::Tensor weight = random("w", {groups, c.columns, c.depth}).to(c.dtype), x = random("x", {rows_of(c), c.depth}).to(c.dtype);
    const GroupedBias bias{.values = random("b", {groups, c.width}, 5).to(c.dtype), .first = c.first};
    const at::Tensor plain = grouped_multiply(x, weight, c.sizes), y = grouped_multiply(x, weight, c.sizes, bias);
    at::Tensor by_operators = plain.clone();
    add_grouped_bias(by_operators, bias, c.sizes);
    EXPECT_TRUE(at::equal(by_operators, y));
    const at::Tensor expected = plain.to(at::kFloat);
    each_group(c, [&](int64_t g, int64_t begin, int64_t size) {
      expected.narrow(0, begin, size).narrow(1, c.first, c.width).add_(bias.values.select(0, g).to(at::kFloat));
    });
    if (rows_of(c) > 0) expect_close(y, expected, "y", c.bound);
  }
}

TEST(GroupedBias, ItsGradientIsTheSumOverRows) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(cat(c.columns, " columns, ", c.width, " from ", c.first));
    const at::Tensor dy = random("dy", {rows_of(c), c.columns}).to(c.dtype), grad = random("grad", {std::ssize(c.sizes), c.width});
    const at::Tensor before = grad.clone(), expected = grad.to(at::kDouble, false, /*copy=*/true);
    each_group(c, [&](int64_t g, int64_t begin, int64_t size) {
      expected.select(0, g).add_(dy.narrow(0, begin, size).narrow(1, c.first, c.width).to(at::kDouble).sum(0));
    });
    accumulate_grouped_bias(dy, c.sizes, grad, c.first);
    if (c.width > 0) expect_close(grad, expected, "gradient");
    at::Tensor again = before.clone();
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    accumulate_grouped_bias(dy, c.sizes, again, c.first);
    at::set_num_threads(threads);
    EXPECT_TRUE(at::equal(again, grad)) << "whatever the threads";
  }
}

}  // namespace
}  // namespace lockstep::nn
