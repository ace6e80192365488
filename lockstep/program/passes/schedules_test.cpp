// Orders of pipelines against the closed forms and pictures of their papers, by running them in unit times.
#include "lockstep/program/passes/schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/program/passes/pipeline_walk.h"

namespace lockstep::program {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;
using Kind = ScheduleKind;
using Lists = std::vector<std::vector<Action>>;

// A rank's picture: "F0 F1 . B0" with the stage as a letter where a rank has several, '.' = one idle unit.
struct Outcome {
  bool ended = false;
  int time = 0;                 // of the whole step
  std::vector<int> bubble{};    // of every rank: idle units between its first and its last action
  std::vector<int> in_flight{}; // most (microbatch, stage) whose F ran and whose B or W has not
  std::vector<std::string> picture{};
};
struct Times {
  int forward = 1, input = 1, weight = 1;
  int of(ActionKind kind) const {
    return kind == ActionKind::kForward          ? forward
           : kind == ActionKind::kBackwardInput  ? input
           : kind == ActionKind::kBackwardWeight ? weight
                                                 : input + weight;
  }
};

// Independent of the library's own walks: every action begins once its rank is free and what it needs has ended.
class Clock {
 public:
  Clock(const ScheduleInput& input, const Lists& lists, Times times) : input_(input), lists_(lists), times_(times) {}

  Outcome run() {
    const size_t ranks = lists_.size();
    next_.assign(ranks, 0);
    free_.assign(ranks, 0);
    run_ = {.bubble = std::vector<int>(ranks, 0),
            .in_flight = std::vector<int>(ranks, 0),
            .picture = std::vector<std::string>(ranks)};
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ranks; ++rank)
        while (next_[rank] < lists_[rank].size() && step(rank)) moved = true;
    }
    run_.ended = true;
    for (size_t rank = 0; rank < ranks; ++rank) {
      run_.ended = run_.ended && next_[rank] == lists_[rank].size();
      run_.time = std::max(run_.time, free_[rank]);
      int held = 0;
      for (const Action& action : lists_[rank]) {
        held += action.kind == ActionKind::kForward ? 1 : action.kind == ActionKind::kBackwardInput ? 0 : -1;
        run_.in_flight[rank] = std::max(run_.in_flight[rank], held);
      }
    }
    return run_;
  }

 private:
  using Key = std::tuple<bool, int, int>;  // forward, stage, microbatch

  bool step(size_t rank) {
    const Action& action = lists_[rank][next_[rank]];
    const bool forward = action.kind == ActionKind::kForward;
    std::vector<Key> needs;
    if (forward && action.stage > 0) needs.emplace_back(true, action.stage - 1, action.microbatch);
    if (!forward) needs.emplace_back(action.kind != ActionKind::kBackwardWeight, action.stage, action.microbatch);
    const bool hands_down = !forward && action.kind != ActionKind::kBackwardWeight;
    if (hands_down && action.stage + 1 < input_.ranks * input_.virtual_stages)
      needs.emplace_back(false, action.stage + 1, action.microbatch);
    int begin = free_[rank];
    for (const Key& key : needs) {
      if (!end_.contains(key)) return false;
      begin = std::max(begin, end_[key]);
    }
    std::string& picture = run_.picture[rank];
    for (int i = free_[rank]; i < begin; ++i) picture += picture.empty() ? "." : " .";
    picture += cat(picture.empty() ? "" : " ", action_name(action.kind), name(action));
    if (next_[rank] > 0) run_.bubble[rank] += begin - free_[rank];
    free_[rank] = begin + times_.of(action.kind);
    // A whole backward hands down its input's gradient at its end, as the papers draw it.
    if (forward || hands_down) end_[{forward, action.stage, action.microbatch}] = free_[rank];
    ++next_[rank];
    return true;
  }
  std::string name(const Action& action) const {
    const int lap = action.stage / input_.ranks;
    return input_.virtual_stages == 1 ? cat(action.microbatch) : cat(static_cast<char>('a' + lap), action.microbatch);
  }

  const ScheduleInput input_;
  const Lists& lists_;
  const Times times_;
  std::map<Key, int> end_;
  std::vector<size_t> next_;
  std::vector<int> free_;
  Outcome run_;
};

Outcome run(const ScheduleInput& input, Times times = {}) { return Clock(input, make_schedule(input), times).run(); }
int longest_bubble(const ScheduleInput& input, Times times = {}) {
  return std::ranges::max(run(input, times).bubble);
}

const std::vector<Kind> kAll = {Kind::kNaive, Kind::kGPipe, Kind::kOneFOneB, Kind::kInterleaved, Kind::kZbH1,
                                Kind::kZbH2,  Kind::kZbV,   Kind::kDualPipeV};

ScheduleInput random_input(std::mt19937& random) {
  const auto of = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  ScheduleInput input{.kind = kAll[static_cast<size_t>(of(0, 7))], .ranks = of(1, 9), .microbatches = of(1, 30)};
  if (v_shaped(input.kind)) input.virtual_stages = 2;
  if (input.kind == Kind::kInterleaved) {
    input.virtual_stages = of(1, 4);
    input.microbatches = input.ranks * of(1, 4);
  }
  return input;
}

std::string text_of(const ScheduleInput& input) {
  return cat(schedule_name(input.kind), ", pp ", input.ranks, " x ", input.virtual_stages, ", ", input.microbatches,
             " microbatches");
}

// Most microbatches in flight of the papers, in units of one stage; `rank` of pp.
int in_flight(const ScheduleInput& in, int rank) {
  const int m = in.microbatches, p = in.ranks, v = in.virtual_stages;
  switch (in.kind) {
    case Kind::kNaive:
      return 1;
    case Kind::kGPipe:
      return m;
    case Kind::kOneFOneB:
      return std::min(m, p - rank);
    case Kind::kInterleaved:
      return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
    case Kind::kZbH1:
      return std::min(m, p);
    case Kind::kZbH2:
      return std::min(m, 2 * p - 1);
    case Kind::kZbV:
      return std::min(2 * m, 2 * p);
    default:
      return std::min(2 * m, 2 * p + 1);
  }
}

// Once each, in ascending order, on the rank that holds the stage; all lists end; within the memory of the paper.
TEST(SchedulesTest, EveryOneIsWholeInOrderEndsAndKeepsToItsMemory) {
  std::mt19937 random(7);
  for (int i = 0; i < 1500; ++i) {
    const ScheduleInput input = random_input(random);
    const Pipeline pipeline{.kind = input.kind, .ranks = input.ranks, .virtual_stages = input.virtual_stages};
    const Lists lists = make_schedule(input);
    ASSERT_EQ(lists.size(), static_cast<size_t>(input.ranks));
    std::map<std::pair<int, ActionKind>, int> next;  // microbatch, by stage; I and W each, and B is both
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      for (const Action& action : lists[rank]) {
        ASSERT_EQ(pipeline.rank_of(action.stage), static_cast<int>(rank)) << text_of(input);
        const bool whole = action.kind == ActionKind::kBackward;
        const ActionKind kind = whole ? ActionKind::kBackwardInput : action.kind;
        ASSERT_EQ(action.microbatch, (next[{action.stage, kind}]++)) << text_of(input);
        if (!whole) continue;
        ASSERT_EQ(action.microbatch, (next[{action.stage, ActionKind::kBackwardWeight}]++)) << text_of(input);
      }
    }
    ASSERT_EQ(next.size(), static_cast<size_t>(3 * input.ranks * input.virtual_stages)) << text_of(input);
    for (const auto& [key, count] : next) ASSERT_EQ(count, input.microbatches) << text_of(input);
    const Outcome done = run(input);
    ASSERT_TRUE(done.ended) << text_of(input);
    for (int rank = 0; rank < input.ranks; ++rank)
      ASSERT_THAT(done.in_flight[static_cast<size_t>(rank)], Le(in_flight(input, rank)))
          << text_of(input) << ", rank " << rank;
  }
}

// As the papers draw them, worked out by hand for few microbatches; B takes two units, '.' is idle.
TEST(SchedulesTest, ThePictureIsThatOfThePaper) {
  const auto picture = [](Kind kind, int ranks, int microbatches, size_t rank, int virtual_stages = 1) {
    return run({.kind = kind, .ranks = ranks, .virtual_stages = virtual_stages, .microbatches = microbatches}).picture[rank];
  };
  EXPECT_EQ(picture(Kind::kNaive, 2, 2, 0), "F0 . . . B0 F1 . . . B1");
  EXPECT_EQ(picture(Kind::kGPipe, 2, 2, 0), "F0 F1 . . . B0 B1");
  EXPECT_EQ(picture(Kind::kOneFOneB, 4, 4, 0), "F0 F1 F2 F3 . . . . . . B0 . B1 . B2 . B3");
  EXPECT_EQ(picture(Kind::kOneFOneB, 4, 4, 3), ". . . F0 B0 F1 B1 F2 B2 F3 B3");
  // a and b: the stages of a rank.
  EXPECT_EQ(picture(Kind::kInterleaved, 2, 2, 0, 2), "Fa0 Fa1 Fb0 Fb1 . . Bb0 . Bb1 Ba0 Ba1");
  EXPECT_EQ(picture(Kind::kZbH1, 4, 8, 0),
            "F0 F1 F2 F3 . . . I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7");
  EXPECT_EQ(picture(Kind::kZbH1, 4, 8, 3),
            ". . . F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7");
  EXPECT_EQ(picture(Kind::kZbH2, 4, 8, 0), "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7");
  EXPECT_EQ(picture(Kind::kZbH2, 4, 8, 3),
            ". . . F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7");
}

// What the papers say of m microbatches over p ranks, in units of one stage's F, I and W.
TEST(SchedulesTest, TheBubbleIsThatOfThePaper) {
  for (const Times t : {Times{1, 1, 1}, Times{3, 4, 3}, Times{10, 10, 9}}) {
    const int all = t.forward + t.input + t.weight;
    for (const int p : {1, 2, 3, 4, 8})
      for (const int m : {1, 2, p, 2 * p, 4 * p, 4 * p + 3}) {
        const auto time = [&](Kind kind) { return run({.kind = kind, .ranks = p, .microbatches = m}, t).time; };
        EXPECT_EQ(time(Kind::kNaive), m * p * all) << p << " ranks, " << m;
        EXPECT_EQ(time(Kind::kGPipe), (m + p - 1) * all) << p << " ranks, " << m;
        EXPECT_EQ(time(Kind::kOneFOneB), (m + p - 1) * all) << p << " ranks, " << m;
      }
  }
}

TEST(SchedulesTest, InterleavedDividesTheBubbleByItsStages) {
  for (const int p : {2, 3, 4, 8})
    for (const int v : {1, 2, 3, 4})
      for (const int rounds : {1, 2, 5}) {
        const int m = rounds * p;
        const ScheduleInput input{.kind = Kind::kInterleaved, .ranks = p, .virtual_stages = v, .microbatches = m};
        EXPECT_EQ(run(input).time, 3 * (m * v + p - 1)) << text_of(input);
      }
}

// Zero bubble of the later papers means that no rank waits between its first action and its last; the ranks begin, and
// end, one after the other.
TEST(SchedulesTest, ZeroBubbleSchedulesFillIt) {
  for (const int p : {1, 2, 3, 4, 6, 8, 16})
    for (const int m : {2 * p, 2 * p + 1, 3 * p, 5 * p + 3}) {
      const ScheduleInput h1{.kind = Kind::kZbH1, .ranks = p, .microbatches = m};
      for (const Times t : {Times{1, 1, 1}, Times{4, 4, 3}}) {
        const int all = t.forward + t.input + t.weight;
        EXPECT_EQ(run(h1, t).time, m * all + (p - 1) * (t.forward + t.input - t.weight)) << text_of(h1);
      }
      EXPECT_EQ(longest_bubble(h1), p - 1) << text_of(h1);
      const ScheduleInput h2{.kind = Kind::kZbH2, .ranks = p, .microbatches = m};
      EXPECT_THAT(run(h2).bubble, Each(0)) << text_of(h2);
      const ScheduleInput v{.kind = Kind::kZbV, .ranks = p, .virtual_stages = 2, .microbatches = m};
      EXPECT_THAT(run(v).bubble, Each(0)) << text_of(v);
      // In units of a half: p - 1 times F + I - W.
      const ScheduleInput dual{.kind = Kind::kDualPipeV, .ranks = p, .virtual_stages = 2, .microbatches = m};
      EXPECT_EQ(run(dual).time, 6 * m + p - 1) << text_of(dual);
    }
}

// F and B of every stage of a rank in ascending order each, anyhow mixed.
Lists mixed(const ScheduleInput& input, std::mt19937& random) {
  Lists lists(static_cast<size_t>(input.ranks));
  for (int rank = 0; rank < input.ranks; ++rank) {
    std::vector<int> forwards(static_cast<size_t>(input.virtual_stages)), backwards = forwards;
    const int all = 2 * input.virtual_stages * input.microbatches;
    while (static_cast<int>(lists[static_cast<size_t>(rank)].size()) < all) {
      const auto lap = static_cast<size_t>(random() % static_cast<unsigned>(input.virtual_stages));
      const bool forward = random() % 2 == 0;
      int& next = forward ? forwards[lap] : backwards[lap];
      if (next == (forward ? input.microbatches : forwards[lap])) continue;
      lists[static_cast<size_t>(rank)].push_back({.kind = forward ? ActionKind::kForward : ActionKind::kBackward,
                                                  .stage = static_cast<int>(lap) * input.ranks + rank,
                                                  .microbatch = next++});
    }
  }
  return lists;
}

// The library's walk against the clock of this test, over orders of which many stop.
TEST(PipelineWalkTest, FindsADeadlockWhereTheListsDoNotEnd) {
  std::mt19937 random(3);
  int stuck = 0;
  constexpr int kCases = 2000;
  for (int i = 0; i < kCases; ++i) {
    const ScheduleInput input{.ranks = 1 + static_cast<int>(random() % 3),
                              .virtual_stages = 1 + static_cast<int>(random() % 2),
                              .microbatches = 1 + static_cast<int>(random() % 3)};
    const Lists lists = mixed(input, random);
    const Pipeline pipeline{.ranks = input.ranks, .virtual_stages = input.virtual_stages};
    WalkInput walk{.pipeline = pipeline, .microbatches = input.microbatches};
    for (const auto& list : lists) {
      walk.ranks.push_back(static_cast<int>(walk.lists.size()));
      walk.lists.push_back(&list);
    }
    const std::vector<std::string> circle = find_deadlock(walk);
    ASSERT_EQ(circle.empty(), Clock(input, lists, {}).run().ended);
    stuck += circle.empty() ? 0 : 1;
    // Each waits for one that the next cannot reach.
    for (size_t at = 0; circle.size() > 1 && at < circle.size(); ++at) {
      const std::string next = circle[(at + 1) % circle.size()];
      const std::string behind = circle[at].substr(circle[at].find("behind ") + 7);
      ASSERT_THAT(next, HasSubstr(cat(": ", behind, " waits for "))) << join(circle, "\n");
    }
  }
  EXPECT_GT(stuck, kCases / 10);
  EXPECT_LT(stuck, kCases * 9 / 10);
}

}  // namespace
}  // namespace lockstep::program
