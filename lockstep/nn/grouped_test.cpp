// Products of groups against one product after the other.
#include "lockstep/nn/grouped.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

struct Case {
  std::vector<int64_t> sizes;
  int64_t depth = 0, columns = 0;
  at::ScalarType dtype = at::kFloat;
  double bound = 1e-5;
};

const std::vector<Case> kCases = {
    {.sizes = {3, 0, 1, 20, 0}, .depth = 12, .columns = 7},
    {.sizes = {0, 0, 0}, .depth = 8, .columns = 4},
    {.sizes = {17}, .depth = 5, .columns = 530},
    {.sizes = {16, 700, 2, 130}, .depth = 40, .columns = 600},
    {.sizes = {64, 0, 65, 5, 530}, .depth = 48, .columns = 520, .dtype = at::kBFloat16, .bound = 0.02},
};

at::Tensor rows(std::string_view name, const Case& c, int64_t columns) {
  return random(name, {std::accumulate(c.sizes.begin(), c.sizes.end(), int64_t{0}), columns}).to(c.dtype);
}

// body(g, first row, rows) for each group that has some.
template <typename Body>
void each_group(const Case& c, const Body& body) {
  int64_t begin = 0;
  for (size_t g = 0; g < c.sizes.size(); begin += c.sizes[g++])
    if (c.sizes[g] > 0) body(static_cast<int64_t>(g), begin, c.sizes[g]);
}

TEST(Grouped, AreTheProductsOfTheGroups) {
  for (const Case& c : kCases) {
    const at::Tensor weight = random("w", {std::ssize(c.sizes), c.columns, c.depth}).to(c.dtype);
    const at::Tensor x = rows("x", c, c.depth), dy = rows("dy", c, c.columns);
    const at::Tensor y = grouped_multiply(x, weight, c.sizes), dx = grouped_multiply_input(dy, weight, c.sizes);
    ASSERT_EQ(y.sizes(), dy.sizes());
    ASSERT_EQ(dx.sizes(), x.sizes());
    const at::Tensor grad = random("grad", {std::ssize(c.sizes), c.columns, c.depth});
    at::Tensor expected_grad = grad.clone();
    accumulate_grouped(dy, x, c.sizes, grad);
    each_group(c, [&](int64_t g, int64_t begin, int64_t size) {
      const at::Tensor w = weight.select(0, g).to(at::kFloat);
      const at::Tensor here = x.narrow(0, begin, size).to(at::kFloat), d = dy.narrow(0, begin, size).to(at::kFloat);
      expect_close(y.narrow(0, begin, size), at::mm(here, w.t()), "y", c.bound);
      expect_close(dx.narrow(0, begin, size), at::mm(d, w), "dx", c.bound);
      expected_grad.select(0, g).add_(at::mm(d.t(), here));
    });
    expect_close(grad, expected_grad, "gradient", c.bound);
  }
}

TEST(Grouped, AGroupWithoutRowsKeepsItsGradient) {
  const Case c{.sizes = {0, 4}, .depth = 6, .columns = 3};
  const at::Tensor grad = random("grad", {2, 3, 6}), before = grad.clone();
  accumulate_grouped(rows("dy", c, 3), rows("x", c, 6), c.sizes, grad);
  EXPECT_TRUE(at::equal(grad.select(0, 0), before.select(0, 0)));
  EXPECT_FALSE(at::equal(grad.select(0, 1), before.select(0, 1)));
}

TEST(Grouped, TheBitsAreThoseOfAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for (const Case& c : kCases) {
    const at::Tensor weight = random("w", {std::ssize(c.sizes), c.columns, c.depth}).to(c.dtype);
    const at::Tensor x = rows("x", c, c.depth);
    at::set_num_threads(1);
    const at::Tensor alone = grouped_multiply(x, weight, c.sizes);
    at::set_num_threads(3);
    EXPECT_TRUE(at::equal(grouped_multiply(x, weight, c.sizes), alone));
    at::set_num_threads(threads);
  }
}

}  // namespace
}  // namespace lockstep::nn
