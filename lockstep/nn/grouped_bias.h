// Biases of the products of grouped.h, one for each group of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace lockstep::nn {

// Added to the columns first .. first + n of a product: all of them, or a part where others add the rest.
struct GroupedBias {
  at::Tensor values{};  // [G, n] in the type of the product, contiguous; undefined: there is none
  int64_t first = 0;
  bool defined() const { return values.defined(); }
};

// To a part of a product on the CPU, by the calling thread: `rows` rows of `out` from `row` on, all of one group, and of them the columns
// [begin, end). out [R, N] contiguous.
struct BiasedPart {
  int64_t group = 0, row = 0, rows = 0, begin = 0, end = 0;
};
void add_bias_part_cpu(const at::Tensor& out, const GroupedBias& bias, const BiasedPart& part);

// To a whole product elsewhere. sizes [G]: rows of each group. One operator where all are equal, else one for each group that has rows.
void add_grouped_bias(const at::Tensor& out, const GroupedBias& bias, std::span<const int64_t> sizes);

// grad [G, n] fp32 += the sums over each group's rows of dy [R, N], columns `first` .. first + n, in fp32. On the CPU the order of the sums
// depends on sizes alone: the same bits with any number of threads. A group without rows adds nothing.
void accumulate_grouped_bias(const at::Tensor& dy, std::span<const int64_t> sizes, const at::Tensor& grad, int64_t first = 0);

}  // namespace lockstep::nn
