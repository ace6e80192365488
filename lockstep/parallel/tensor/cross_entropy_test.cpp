// Cross-entropy over logits in parts, as ranks of a tp group hold them, against LibTorch's over all of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/nn/cross_entropy.h"
#include "lockstep/parallel/tensor/vocabulary.h"
#include "support/tensors.h"

namespace lockstep::parallel {
namespace {

using nn::kIgnoredTarget;
using testing::expect_close;
using testing::random;

struct Outcome {
  std::vector<at::Tensor> losses;  // of each rank
  at::Tensor gradient;             // [m, V]: the parts side by side
};

// Columns `borders[r]` to `borders[r + 1]` are those of rank r.
Outcome in_parts(const at::Tensor& logits, const at::Tensor& targets, const std::vector<int64_t>& borders) {
  std::vector<at::Tensor> columns, parts;
  for (size_t r = 0; r + 1 < borders.size(); ++r) {
    columns.push_back(logits.narrow(1, borders[r], borders[r + 1] - borders[r]).clone(at::MemoryFormat::Contiguous));
    parts.push_back(cross_entropy_part_(columns[r], targets, borders[r]));
    EXPECT_EQ(parts[r].sizes(), at::IntArrayRef({logits.size(0), 3}));
    EXPECT_EQ(parts[r].scalar_type(), at::kFloat);
  }
  Outcome outcome;
  const at::Tensor all = at::stack(parts);
  for (size_t r = 0; r < columns.size(); ++r)
    outcome.losses.push_back(cross_entropy_whole_(columns[r], targets, borders[r], all, static_cast<int>(r)));
  outcome.gradient = at::cat(columns, 1);
  return outcome;
}

// By autograd, in fp64.
struct Expected {
  double loss;
  at::Tensor gradient;
};
Expected by_autograd(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor x = logits.to(at::kDouble).detach().requires_grad_(true);
  const at::Tensor valid = targets.ne(kIgnoredTarget);
  const at::Tensor chosen = at::gather(at::log_softmax(x, 1), 1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor loss = at::where(valid, chosen, 0.0).sum().neg();
  loss.backward();
  return {.loss = loss.item<double>(), .gradient = x.grad()};
}

void check(const at::Tensor& logits, const at::Tensor& targets, const std::vector<int64_t>& borders, double bound) {
  const Outcome outcome = in_parts(logits, targets, borders);
  const Expected expected = by_autograd(logits, targets);
  for (const at::Tensor& loss : outcome.losses) {
    EXPECT_TRUE(at::equal(loss, outcome.losses[0])) << "the same bits on every rank";
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), expected.loss, 1e-5 * std::abs(expected.loss) + 1e-6);
  }
  expect_close(outcome.gradient, expected.gradient, "gradient", bound);
}

constexpr int64_t kVocab = 67;
// Even and uneven parts, one of a single column, and all columns on one rank.
const std::vector<std::vector<int64_t>> kBorders = {
    {0, 67}, {0, 34, 67}, {0, 17, 34, 51, 67}, {0, 1, 2, 67}, {0, 66, 67}, {0, 8, 16, 24, 32, 40, 48, 56, 67}};

// Every column is a target once, the first and last of each part among them.
at::Tensor every_target() { return at::arange(0, kVocab, at::kLong); }

// bf16 gradients are rounded to 2^-9 of themselves.
TEST(CrossEntropyParts, MatchLogSoftmaxWithEveryColumnAsTarget) {
  for (const auto& borders : kBorders)
    for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 4e-3)})
      check(random("logits", {kVocab, kVocab}, 3).to(dtype), every_target(), borders, bound);
}

TEST(CrossEntropyParts, IgnoredTargetsAddNothingAndHaveNoGradient) {
  at::Tensor targets = every_target();
  for (int64_t row = 0; row < kVocab; row += 3) targets.data_ptr<int64_t>()[row] = kIgnoredTarget;
  for (const auto& borders : kBorders) {
    const at::Tensor logits = random("logits", {kVocab, kVocab}, 3);
    check(logits, targets, borders, 1e-5);
    const Outcome outcome = in_parts(logits, targets, borders);
    for (int64_t row = 0; row < kVocab; row += 3) EXPECT_EQ(outcome.gradient[row].abs().max().item<float>(), 0);
  }
  targets.fill_(kIgnoredTarget);
  const Outcome none = in_parts(random("logits", {kVocab, kVocab}), targets, {0, 34, 67});
  EXPECT_EQ(none.losses[1].item<float>(), 0);
  EXPECT_EQ(none.gradient.abs().max().item<float>(), 0);
}

// Where e^x is beyond fp32: the largest logit in one part, far above or below those of the others.
TEST(CrossEntropyParts, LargeLogitsStayFinite) {
  for (const auto& borders : kBorders)
    for (const double shift : {1e4, -1e4})
      for (const auto& [dtype, bound] : {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 4e-3)}) {
        at::Tensor logits = random("logits", {kVocab, kVocab}, 3).add_(shift);
        logits.narrow(1, borders[borders.size() - 2], 1).add_(200);
        check(logits.to(dtype), every_target(), borders, bound);
      }
  const at::Tensor far = random("logits", {kVocab, kVocab}, 3);
  far.narrow(1, 0, 34).sub_(1e30);
  check(far, every_target(), {0, 34, 67}, 1e-5);
}

TEST(CrossEntropyParts, AreWhatOnePartGives) {
  const at::Tensor logits = random("logits", {kVocab, kVocab}, 3), alone = logits.clone();
  const at::Tensor loss = nn::cross_entropy_(alone, every_target());
  const Outcome outcome = in_parts(logits, every_target(), {0, 20, 67});
  expect_close(outcome.losses[0], loss, "loss", 1e-6);
  expect_close(outcome.gradient, alone, "gradient", 1e-6);
}

// On whichever rank it is.
TEST(CrossEntropyParts, AValueThatIsNotFiniteMakesTheLossSo) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const int64_t column : {3, 50}) {
      const at::Tensor logits = random("logits", {4, kVocab});
      logits[2][column] = value;
      const Outcome outcome = in_parts(logits, at::arange(0, 4, at::kLong), {0, 34, 67});
      for (const at::Tensor& loss : outcome.losses) EXPECT_FALSE(std::isfinite(loss.item<float>())) << column;
    }
}

}  // namespace
}  // namespace lockstep::parallel
