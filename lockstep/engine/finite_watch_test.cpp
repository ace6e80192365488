// Whose gradient is named: the same by the host's look and by the flags of a device, in the order of the looks.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/engine/finite_watch.h"

namespace lockstep::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kNumel = 5;

// A unit of three parameters, rows 3 `unit` to 3 `unit` + 2 of the table, side by side with padding behind them.
FiniteWatch::Gradients gradients(int unit) {
  FiniteWatch::Gradients all{.all = at::zeros({16}), .pieces = {}};
  for (int i = 0; i < 3; ++i) {
    all.pieces.push_back({.param = 3 * unit + i, .values = all.all.narrow(0, i * kNumel, kNumel)});
    all.pieces.back().values.fill_(i - 1);
  }
  return all;
}

FiniteWatch watch(bool by_flags) {
  if (!by_flags) return FiniteWatch(nullptr);
  return FiniteWatch(nullptr, [](const auto& pieces, const at::Tensor& flags) { nn::cuda::mark_nonfinite(pieces, flags); });
}

class Looks : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(FiniteWatch, Looks, ::testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "ByFlags" : "OnTheHost"; });

TEST_P(Looks, FindNothingInFiniteValues) {
  FiniteWatch watched = watch(GetParam());
  watched.look({gradients(0), gradients(1)});
  watched.read();
  EXPECT_EQ(watched.first(), -1);
  EXPECT_FALSE(watched.unread().defined());
}

TEST_P(Looks, NameTheParameter) {
  for (const float value : {kNan, kInfinity, -kInfinity})
    for (int param = 0; param < 6; ++param)
      for (const int64_t place : {int64_t{0}, kNumel - 1}) {
        FiniteWatch watched = watch(GetParam());
        std::vector<FiniteWatch::Gradients> all = {gradients(0), gradients(1)};
        all[static_cast<size_t>(param / 3)].pieces[static_cast<size_t>(param % 3)].values[place].fill_(value);
        watched.look(all);
        watched.read();
        EXPECT_EQ(watched.first(), param) << value << " at " << place;
      }
}

// Backward comes to the last layers first, and to every layer once a microbatch.
TEST_P(Looks, NameTheFirstThatWasFound) {
  FiniteWatch watched = watch(GetParam());
  FiniteWatch::Gradients first = gradients(0), second = gradients(1);
  watched.look({second});
  watched.look({first});
  second.pieces[2].values[1].fill_(kNan);
  watched.look({second});
  first.pieces[0].values[1].fill_(kNan);
  second.pieces[0].values[1].fill_(kNan);
  watched.look({first, second});
  watched.read();
  EXPECT_EQ(watched.first(), 5);
}

TEST_P(Looks, ForgetTheStepBefore) {
  FiniteWatch watched = watch(GetParam());
  FiniteWatch::Gradients bad = gradients(0);
  bad.pieces[1].values[0].fill_(kNan);
  watched.look({bad});
  watched.read();
  EXPECT_EQ(watched.first(), 1);
  watched.start_step();
  watched.look({gradients(0)});
  watched.read();
  EXPECT_EQ(watched.first(), -1);
}

// As NORM does, once LOSS has found nothing.
TEST_P(Looks, GoOnAfterTheyWereRead) {
  FiniteWatch watched = watch(GetParam());
  watched.look({gradients(0)});
  watched.read();
  FiniteWatch::Gradients bad = gradients(1);
  bad.pieces[0].values[4].fill_(kInfinity);
  watched.look({bad});
  watched.read();
  EXPECT_EQ(watched.first(), 3);
}

// More flags than there was room for: those that are marked stay so.
TEST_P(Looks, AreAsManyAsAStepHas) {
  FiniteWatch watched = watch(GetParam());
  FiniteWatch::Gradients bad = gradients(7);
  bad.pieces[1].values[2].fill_(kNan);
  for (int unit = 0; unit < 300; ++unit) watched.look({unit == 7 ? bad : gradients(unit)});
  watched.read();
  EXPECT_EQ(watched.first(), 3 * 7 + 1);
}

// The host asks for sums: of finite values one may overflow. A device looks at the values.
TEST(FiniteWatch, FiniteValuesWhoseSumOverflows) {
  for (const bool by_flags : {false, true}) {
    FiniteWatch watched = watch(by_flags);
    FiniteWatch::Gradients large = gradients(0);
    large.pieces[2].values.fill_(3e38f);
    watched.look({large});
    watched.read();
    EXPECT_EQ(watched.first(), by_flags ? -1 : 2);
  }
}

TEST(FiniteWatch, AnswersOnlyWhenAllFlagsWereRead) {
  FiniteWatch watched = watch(true);
  watched.look({gradients(0)});
  ASSERT_TRUE(watched.unread().defined());
  EXPECT_EQ(watched.unread().numel(), 3);
  EXPECT_THROW(watched.first(), InternalError);
  watched.read();
  EXPECT_EQ(watched.first(), -1);
}

}  // namespace
}  // namespace lockstep::engine
