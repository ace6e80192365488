#include "lockstep/nn/grouped_bias.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/vector_math.h"

#pragma GCC diagnostic ignored "-Wpsabi"

namespace lockstep::nn {
namespace {

using vec::Floats;
using vec::kLanes;
using BFloat16 = c10::BFloat16;

constexpr int64_t kVectors = 4;                    // sums of a strip of columns are in so many registers
constexpr int64_t kStrip = kVectors * kLanes;      // columns
constexpr int64_t kBlock = 64;                     // rows that are summed before their sum is added to the others'
constexpr int64_t kGrain = 16384;                  // elements worth a thread

template <typename T>
LOCKSTEP_INLINE void add_to_rows(T* out, const T* bias, int64_t rows, int64_t columns, int64_t distance) {
  for (int64_t row = 0; row < rows; ++row, out += distance)
    for (int64_t i = 0; i < columns; i += kLanes) {
      Floats x{}, b{};
      vec::load(out + i, columns - i, x);
      vec::load(bias + i, columns - i, b);
      vec::store(out + i, columns - i, x + b);
    }
}

// `columns` <= kStrip.
template <typename T>
LOCKSTEP_INLINE void sum_strip(const T* from, int64_t rows, int64_t columns, int64_t distance, float* to) {
  Floats sums[kVectors] = {};
  for (int64_t begin = 0; begin < rows; begin += kBlock) {
    Floats of_block[kVectors] = {};
    for (int64_t row = begin; row < std::min(rows, begin + kBlock); ++row)
      for (int64_t j = 0; j < kVectors; ++j) {
        if (columns <= j * kLanes) break;
        Floats x{};
        vec::load(from + row * distance + j * kLanes, columns - j * kLanes, x);
        of_block[j] += x;
      }
    for (int64_t j = 0; j < kVectors; ++j) sums[j] += of_block[j];
  }
  for (int64_t j = 0; j < kVectors && columns > j * kLanes; ++j) {
    Floats x{};
    vec::load(to + j * kLanes, columns - j * kLanes, x);
    vec::store(to + j * kLanes, columns - j * kLanes, x + sums[j]);
  }
}

LOCKSTEP_CLONES void add_rows_of(float* out, const float* bias, int64_t rows, int64_t columns, int64_t distance) {
  add_to_rows(out, bias, rows, columns, distance);
}
LOCKSTEP_CLONES void add_rows_of(BFloat16* out, const BFloat16* bias, int64_t rows, int64_t columns, int64_t distance) {
  add_to_rows(out, bias, rows, columns, distance);
}
LOCKSTEP_CLONES void sum_strip_of(const float* from, int64_t rows, int64_t columns, int64_t distance, float* to) {
  sum_strip(from, rows, columns, distance, to);
}
LOCKSTEP_CLONES void sum_strip_of(const BFloat16* from, int64_t rows, int64_t columns, int64_t distance, float* to) {
  sum_strip(from, rows, columns, distance, to);
}

// Strips of one group are far apart, so that threads get parts of large and of small groups.
template <typename T>
void sum_groups(const at::Tensor& dy, std::span<const int64_t> sizes, const at::Tensor& grad, int64_t first) {
  const int64_t groups = grad.size(0), columns = grad.size(1), distance = dy.size(1);
  std::vector<int64_t> begins;
  int64_t begin_of_group = 0;
  for (const int64_t size : sizes) begins.push_back(begin_of_group), begin_of_group += size;
  const int64_t strips = (columns + kStrip - 1) / kStrip, of_strip = dy.size(0) / std::max<int64_t>(1, groups) * kStrip;
  const T* const from = dy.const_data_ptr<T>();
  float* const to = grad.data_ptr<float>();
  at::parallel_for(0, strips * groups, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, of_strip)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i % groups, column = i / groups * kStrip;
      const auto at = static_cast<size_t>(group);
      if (sizes[at] == 0) continue;
      sum_strip_of(from + begins[at] * distance + first + column, sizes[at], std::min(kStrip, columns - column), distance,
                   to + group * columns + column);
    }
  });
}

int64_t sum_of(std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

// body(group, first row, rows) for each group that has some.
template <typename Body>
void each_group(std::span<const int64_t> sizes, const Body& body) {
  int64_t begin = 0;
  for (size_t group = 0; group < sizes.size(); begin += sizes[group++])
    if (sizes[group] > 0) body(static_cast<int64_t>(group), begin, sizes[group]);
}

void check_columns(const at::Tensor& rows, const at::Tensor& of_groups, std::span<const int64_t> sizes, int64_t first) {
  LOCKSTEP_CHECK_EQ(std::ssize(sizes), of_groups.size(0), "groups");
  LOCKSTEP_CHECK_EQ(sum_of(sizes), rows.size(0), "rows of all groups");
  LOCKSTEP_CHECK(first >= 0 && first + of_groups.size(1) <= rows.size(1), "columns ", first, " to ", first + of_groups.size(1), " of ",
                 rows.size(1));
}

}  // namespace

void add_bias_part_cpu(const at::Tensor& out, const GroupedBias& bias, const BiasedPart& part) {
  const int64_t width = bias.values.size(1), distance = out.size(1);
  const int64_t begin = std::max(part.begin, bias.first), end = std::min(part.end, bias.first + width);
  if (begin >= end) return;
  const auto run = [&]<typename T>(T) {
    add_rows_of(out.data_ptr<T>() + part.row * distance + begin, bias.values.const_data_ptr<T>() + part.group * width + begin - bias.first,
                part.rows, end - begin, distance);
  };
  if (out.scalar_type() == at::kFloat)
    run(float{});
  else
    run(BFloat16{});
}

void add_grouped_bias(const at::Tensor& out, const GroupedBias& bias, std::span<const int64_t> sizes) {
  check_columns(out, bias.values, sizes, bias.first);
  const int64_t groups = bias.values.size(0), width = bias.values.size(1);
  if (out.size(0) == 0 || width == 0) return;
  if (std::ranges::all_of(sizes, [&](int64_t size) { return size == sizes[0]; })) {
    out.view({groups, sizes[0], out.size(1)}).narrow(2, bias.first, width).add_(bias.values.unsqueeze(1));
    return;
  }
  each_group(sizes, [&](int64_t group, int64_t begin, int64_t rows) {
    out.narrow(0, begin, rows).narrow(1, bias.first, width).add_(bias.values.select(0, group));
  });
}

void accumulate_grouped_bias(const at::Tensor& dy, std::span<const int64_t> sizes, const at::Tensor& grad, int64_t first) {
  LOCKSTEP_CHECK(dy.is_contiguous() && grad.is_contiguous());
  check_columns(dy, grad, sizes, first);
  if (!dy.is_cpu()) {
    each_group(sizes, [&](int64_t group, int64_t begin, int64_t rows) {
      grad.select(0, group).add_(dy.narrow(0, begin, rows).narrow(1, first, grad.size(1)).sum(0, /*keepdim=*/false, at::kFloat));
    });
    return;
  }
  if (dy.scalar_type() == at::kFloat)
    sum_groups<float>(dy, sizes, grad, first);
  else
    sum_groups<BFloat16>(dy, sizes, grad, first);
}

}  // namespace lockstep::nn
