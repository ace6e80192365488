// The two forms of grouped products against each other, on the CPU, where LibTorch takes the operands of its grouped product laid out as
// on a GPU.
#include "lockstep/nn/grouped_gpu.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "lockstep/nn/upload.h"
#include "support/tensors.h"

namespace lockstep::nn {
namespace {

using testing::expect_close;
using testing::random;

// A group alone, none with rows, first and last ones empty, one row.
const std::vector<std::vector<int64_t>> kSizes = {{3, 0, 1, 20, 0}, {0, 0, 0}, {17}, {0, 1}, {16, 130, 2, 0, 0, 40, 1}};
constexpr int64_t kDepth = 24, kColumns = 40;

int64_t rows_of(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

at::Tensor bf16(std::string_view name, at::IntArrayRef shape) { return random(name, shape).to(at::kBFloat16); }

TEST(GroupedOnAGpu, OneCallIsTheLoop) {
  for (const std::vector<int64_t>& sizes : kSizes) {
    const int64_t rows = rows_of(sizes);
    const at::Tensor weight = bf16("w", {std::ssize(sizes), kColumns, kDepth});
    const at::Tensor x = bf16("x", {rows, kDepth}), dy = bf16("dy", {rows, kColumns});
    const auto same = [&](const at::Tensor& of, const at::Tensor& factors, const char* what) {
      if (rows == 0) return;
      ASSERT_TRUE(fits_one_call(of, weight)) << what;
      const at::Tensor loop = multiply_groups(of, factors, sizes, GroupForm::kLoop);
      expect_close(multiply_groups(of, factors, sizes, GroupForm::kOneCall), loop, what, 0.01);
    };
    same(x, weight.transpose(1, 2), "outputs");
    same(dy, weight, "gradients of rows");
    EXPECT_EQ(multiply_groups(x, weight.transpose(1, 2), sizes, GroupForm::kOneCall).sizes(), dy.sizes());
  }
}

TEST(GroupedOnAGpu, GradientsOfWeightsAreAddedInFp32) {
  for (const std::vector<int64_t>& sizes : kSizes) {
    const at::Tensor x = bf16("x", {rows_of(sizes), kDepth}), dy = bf16("dy", {rows_of(sizes), kColumns});
    const at::Tensor loop = random("grad", {std::ssize(sizes), kColumns, kDepth}), once = loop.clone(), before = loop.clone();
    accumulate_groups(dy, x, sizes, loop, GroupForm::kLoop);
    accumulate_groups(dy, x, sizes, once, GroupForm::kOneCall);
    expect_close(once, loop, "gradients", 0.01);
    for (size_t group = 0; group < sizes.size(); ++group) {
      const auto g = static_cast<int64_t>(group);
      if (sizes[group] == 0) {
        EXPECT_TRUE(once[g].equal(before[g])) << "of no rows";
      }
    }
  }
  // 1 + 2^-12, which bf16 does not have.
  const at::Tensor grad = at::full({2, 8, 8}, 1.0, at::kFloat), ones = at::ones({4, 8}, at::kBFloat16);
  accumulate_groups(ones.mul(std::ldexp(1.0, -13)), ones, std::vector<int64_t>{2, 2}, grad, GroupForm::kOneCall);
  EXPECT_TRUE(grad.equal(at::full({2, 8, 8}, 1 + std::ldexp(1.0, -12), at::kFloat)));
}

TEST(GroupedOnAGpu, TakesOnlyWholeSixteenBytesOfBf16) {
  const auto fits = [](int64_t depth, int64_t columns, at::ScalarType type = at::kBFloat16) {
    return fits_one_call(at::zeros({5, depth}, type), at::zeros({2, columns, depth}, type));
  };
  EXPECT_TRUE(fits(8, 8));
  EXPECT_TRUE(fits(64, 24));
  EXPECT_FALSE(fits(12, 24));
  EXPECT_FALSE(fits(24, 12));
  EXPECT_FALSE(fits(64, 64, at::kFloat));
  const at::Tensor memory = at::zeros({5 * 8 + 1}, at::kBFloat16), rows = at::zeros({5, 8}, at::kBFloat16);
  EXPECT_FALSE(fits_one_call(memory.narrow(0, 1, 5 * 8).view({5, 8}), rows)) << "an odd address";
  EXPECT_FALSE(fits_one_call(at::zeros({8, 8}, at::kBFloat16).t(), rows)) << "not contiguous";
  EXPECT_EQ(group_form(rows, rows), GroupForm::kLoop) << "of the CPU";
}

TEST(GroupedOnAGpu, ValuesOfTheHostAreCopied) {
  std::vector<int64_t> values = {5, -1, int64_t{1} << 40};
  const at::Tensor copy = upload(std::span<const int64_t>(values), at::kCPU);
  values.assign(3, 0);
  EXPECT_EQ(copy.scalar_type(), at::kLong);
  EXPECT_EQ(copy[2].item<int64_t>(), int64_t{1} << 40);
  EXPECT_EQ(upload(std::span<const float>(), at::kCPU).numel(), 0);
}

}  // namespace
}  // namespace lockstep::nn
