#include "lockstep/nn/gemm_rows.h"

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

TEST(FewRows, IsALinearLayer) {
  for (const auto& [depth, columns] : {std::pair<int64_t, int64_t>{16, 4}, {64, 33}, {7, 5}, {97, 130}, {768, 257}}) {
    const at::Tensor weight = random("weight", {columns, depth}), bias = random("bias", {columns});
    for (const int64_t rows : {1, 2, 4, 7, 16}) {
      SCOPED_TRACE(cat(rows, " x ", depth, " x ", columns));
      const at::Tensor x = random("x", {rows, depth});
      expect_close(multiply_few_rows(x, weight, bias), at::linear(x, weight, bias), "with bias", 1e-6);
      expect_close(multiply_few_rows(x, weight, {}), at::linear(x, weight), "without", 1e-6);
    }
  }
}

TEST(FewRows, ARowDoesNotDependOnTheOthersNorOnThreads) {
  const at::Tensor weight = random("weight", {1301, 100}), x = random("x", {11, 100});
  const int threads = at::get_num_threads();
  const at::Tensor all = multiply_few_rows(x, weight, {});
  at::set_num_threads(3);
  for (int64_t row = 0; row < 11; ++row)
    EXPECT_TRUE(at::equal(multiply_few_rows(x.narrow(0, row, 1), weight, {}), all.narrow(0, row, 1))) << row;
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace lockstep::nn
