// The cross-entropy kernel: sums in the order that it promises, rows without a target, targets and logits that are wrong.
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <limits>

#include "emulation/launches.h"
#include "support/tensors.h"

namespace lockstep::emulation {
namespace {

using nn::cuda::SoftmaxSum;
using testing::expect_close;

constexpr size_t kRowThreads = 512;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
struct Rows {
  std::vector<T> logits;
  std::vector<int64_t> targets;
  int64_t size;
};

template <typename T>
struct Outcome {
  std::vector<T> logits;
  std::vector<float> losses;
};

// A thread has every 512th group of `width` neighbours.
template <typename T>
SoftmaxSum plain_sum(const T* row, int64_t size, int64_t width) {
  const SoftmaxSum empty{-kInfinity, 0};
  std::vector<SoftmaxSum> of_thread(kRowThreads, empty);
  for (int64_t i = 0; i < size / width; ++i) {
    std::vector<float> group;
    for (int64_t j = 0; j < width; ++j) group.push_back(wide(row[i * width + j]));
    SoftmaxSum& sum = of_thread[static_cast<size_t>(i) % kRowThreads];
    sum = nn::cuda::include(sum, group.data(), static_cast<int>(width));
  }
  return block_sum(of_thread, empty, [](SoftmaxSum a, SoftmaxSum b) { return nn::cuda::merge(a, b); });
}

template <typename T>
Outcome<T> plain(const Rows<T>& rows, int64_t width) {
  Outcome<T> out{.logits = rows.logits, .losses = {}};
  for (size_t row = 0; row < rows.targets.size(); ++row) {
    const int64_t target = rows.targets[row];
    T* x = out.logits.data() + static_cast<int64_t>(row) * rows.size;
    if (target == nn::cuda::kIgnored) {
      std::fill(x, x + rows.size, rounded<T>(0));
      out.losses.push_back(0);
      continue;
    }
    const SoftmaxSum sum = plain_sum(x, rows.size, width);
    const bool known = target >= 0 && target < rows.size;
    out.losses.push_back(nn::cuda::cross_entropy(known ? wide(x[target]) : kNan, sum));
    for (int64_t i = 0; i < rows.size; ++i)
      x[i] = rounded<T>(nn::cuda::softmax(wide(x[i]), sum) - (i == target ? 1.0f : 0.0f));
  }
  return out;
}

template <typename T>
Outcome<T> launched(const Rows<T>& rows, size_t away) {
  const auto count = static_cast<int64_t>(rows.targets.size());
  const Results results = in_every_order(
      [&](Buffers& buffers) {
        T* const logits = buffers.inout("logits", rows.logits);
        float* const losses = buffers.output<float>("losses", rows.targets.size());
        nn::cuda::launch_cross_entropy(nullptr, kElement<T>, logits, buffers.input("targets", rows.targets), losses, count,
                                       rows.size);
      },
      away);
  return {values_of<T>(results, "logits"), values_of<float>(results, "losses")};
}

template <typename T>
class CrossEntropyKernel : public ::testing::Test {
 protected:
  static constexpr int64_t kLanes = 16 / sizeof(T);
};
using Types = ::testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(CrossEntropyKernel, Types);

TYPED_TEST(CrossEntropyKernel, LossesAndGradients) {
  using T = TypeParam;
  for (const int64_t count : {1, 5})  // five: more than there are blocks
    for (const int64_t size : {1, 8, 31, 513, 1000, 4128})
      for (const size_t away : {size_t{0}, sizeof(T)}) {
        SCOPED_TRACE(::testing::Message() << count << " x " << size << ", " << away << " away");
        Rows<T> rows{.logits = normals<T>("logits", count * size, 3), .targets = {}, .size = size};
        for (int64_t row = 0; row < count; ++row) rows.targets.push_back(row * (size - 1) / std::max<int64_t>(1, count - 1));
        const Outcome<T> actual = launched(rows, away);
        const bool in_groups = away == 0 && size % this->kLanes == 0;
        const Outcome<T> expected = plain(rows, in_groups ? this->kLanes : 1);
        expect_same(actual.losses, expected.losses, "losses");
        expect_same(actual.logits, expected.logits, "logits");

        const at::Tensor logs = at::_log_softmax(tensor(rows.logits, {count, size}), 1, false);
        const at::Tensor targets = at::from_blob(rows.targets.data(), {count, 1}, at::kLong);
        const at::Tensor gradient = logs.exp().scatter_add(1, targets, at::full({count, 1}, -1.0));
        expect_close(tensor(actual.logits, {count, size}), gradient, "gradient", size == 1 ? 1e-6 : kBound<T>);
        if (size > 1) expect_close(tensor(actual.losses, {count, 1}), logs.gather(1, targets).neg(), "losses", 3e-6);
      }
}

TYPED_TEST(CrossEntropyKernel, RowsWithoutATargetAndTargetsThatAreNone) {
  using T = TypeParam;
  for (const int64_t size : {5, 16}) {
    Rows<T> rows{.logits = normals<T>("logits", 7 * size), .targets = {nn::cuda::kIgnored, 2, size, -1, nn::cuda::kIgnored, 0, int64_t{1} << 40}, .size = size};
    // What is in an ignored row does not matter.
    rows.logits[1] = rounded<T>(kNan);
    const Outcome<T> actual = launched(rows, 0);
    const Outcome<T> expected = plain(rows, size % this->kLanes == 0 ? this->kLanes : 1);
    expect_same(actual.losses, expected.losses, "losses");
    expect_same(actual.logits, expected.logits, "logits");
    for (const size_t row : {0, 4}) EXPECT_EQ(actual.losses[row], 0.0f);
    for (const size_t row : {2, 3, 6}) EXPECT_TRUE(std::isnan(actual.losses[row])) << row;
    for (const size_t row : {1, 5}) EXPECT_TRUE(std::isfinite(actual.losses[row])) << row;
  }
}

TYPED_TEST(CrossEntropyKernel, LogitsThatAreNotFinite) {
  using T = TypeParam;
  for (const int64_t size : {5, 16, 1040}) {
    Rows<T> rows{.logits = normals<T>("logits", 6 * size), .targets = {1, 1, 1, 1, 1, 1}, .size = size};
    const auto at = [&](int64_t row, int64_t column) -> T& { return rows.logits[static_cast<size_t>(row * size + column)]; };
    for (int64_t i = 0; i < size; ++i) at(0, i) = rounded<T>(-kInfinity);
    at(1, 0) = rounded<T>(kNan);
    at(2, size - 1) = rounded<T>(kInfinity);
    for (int64_t i = 0; i < size; i += 2) at(3, i) = rounded<T>(-kInfinity);  // masked: the rest is a softmax of its own
    at(4, 1) = rounded<T>(-kInfinity);                                        // the target itself
    const Outcome<T> actual = launched(rows, 0);
    const Outcome<T> expected = plain(rows, size % this->kLanes == 0 ? this->kLanes : 1);
    expect_same(actual.losses, expected.losses, "losses");
    expect_same(actual.logits, expected.logits, "logits");
    for (const size_t row : {0, 1, 2}) EXPECT_TRUE(std::isnan(actual.losses[row]) || std::isinf(actual.losses[row])) << row;
    EXPECT_TRUE(std::isfinite(actual.losses[3]));
    EXPECT_EQ(wide(actual.logits[static_cast<size_t>(3 * size)]), 0.0f);
    EXPECT_EQ(actual.losses[4], kInfinity);
    EXPECT_TRUE(std::isfinite(actual.losses[5]));
  }
}

TYPED_TEST(CrossEntropyKernel, NothingIsNothing) {
  nn::cuda::launch_cross_entropy(nullptr, kElement<TypeParam>, nullptr, nullptr, nullptr, 0, 8);
  nn::cuda::launch_cross_entropy(nullptr, kElement<TypeParam>, nullptr, nullptr, nullptr, 8, 0);
}

}  // namespace
}  // namespace lockstep::emulation
