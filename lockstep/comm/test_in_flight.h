// Tests of many calls of several groups at once, run over each backend as those of test_collectives.h are.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "lockstep/comm/test_collectives.h"

namespace lockstep::comm {
namespace {

TEST(InFlight, ManyCallsOfSeveralGroupsAtOnce) {
  constexpr int n = 4;
  run_ranks(n, [](World& world) {
    const auto everyone = world.communicator(all_ranks(n), "world");
    const auto pair = world.communicator(world.rank() < 2 ? std::vector{0, 1} : std::vector{3, 2}, "pair");
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int call = 0; call < 100; ++call) {
      tensors.push_back(floats(1 + call * 97, [&](int64_t i) { return value(world.rank(), i + call); }));
      Communicator& group = call % 2 ? *pair : *everyone;
      works.push_back(group.all_reduce(
          tensors.back(), {.id = program::named_call(cat("call ", call)), .algorithm = kAlgorithms[static_cast<size_t>(call % 5)]}));
    }
    for (int call = 99; call >= 0; --call) {
      Work& work = works[static_cast<size_t>(call)];
      work.wait();
      EXPECT_TRUE(work.done());
      EXPECT_GE(work.exposed_seconds(), 0);
      const double ranks = call % 2 ? (world.rank() < 2 ? 1 + 2 : 3 + 4) : 1 + 2 + 3 + 4;
      expect(
          tensors[static_cast<size_t>(call)], [&](int64_t i) { return ranks * value(0, i + call); },
          cat("call ", call));
    }
    EXPECT_EQ(everyone->take_ledger().entries().size(), 50u);
    EXPECT_EQ(everyone->take_ledger().entries().size(), 0u);
  });
}

// Tensor and data parallel groups of a 2 x 2 grid, calls of both that wait and that do not, of any size and kind.
TEST(InFlight, BlockingCallsAmongOthersInTurn) {
  constexpr int n = 4;
  run_ranks(n, [](World& world) {
    const int r = world.rank();
    const auto tp = world.communicator({r / 2 * 2, r / 2 * 2 + 1}, "tp");
    const auto dp = world.communicator({r % 2, r % 2 + 2}, "dp");
    const auto everyone = world.communicator(all_ranks(n), "world");
    std::vector<std::pair<at::Tensor, double>> sums;  // and the sum of the ranks' first factors
    std::vector<Work> works;
    RandomStream common(11, "calls");  // the same on all ranks
    for (uint64_t call = 0; call < 200; ++call) {
      const auto draw = [&](uint64_t kinds, uint64_t which) { return common.bits(4 * call + which) % kinds; };
      Communicator& group = *std::array{tp.get(), dp.get(), everyone.get()}[draw(3, 0)];
      const int64_t part = static_cast<int64_t>(call % 50 == 0 ? 100003 : draw(2000, 1));
      const bool blocking = draw(4, 2) > 0;
      const int first = &group == tp.get() ? r / 2 * 2 : &group == dp.get() ? r % 2 : 0;
      double factors = 0;
      for (int member = 0; member < group.size(); ++member)
        factors += first + 1 + member * (&group == dp.get() ? 2 : 1);
      const at::Tensor full = floats(part * group.size(), [&](int64_t i) { return value(r, i); });
      if (draw(2, 3) == 0) {
        works.push_back(group.all_reduce(full, {.id = program::named_call("all"), .algorithm = kAlgorithms[call % 5], .blocking = blocking}));
      } else {
        const auto algorithm = call % 2 ? Algorithm::kDirect : Algorithm::kRing;
        const at::Tensor own = full.narrow(0, group.rank() * part, part);
        group.reduce_scatter(full, own, {.id = program::named_call("scatter"), .algorithm = algorithm, .blocking = blocking});
        works.push_back(group.all_gather(own, full, {.id = program::named_call("gather"), .algorithm = algorithm, .blocking = blocking}));
      }
      sums.emplace_back(full, factors);
    }
    for (Work& work : works) work.wait();
    for (const auto& [tensor, factors] : sums)
      expect(tensor, [&](int64_t i) { return factors * value(0, i); }, "sum");
  });
}

// Groups of the same ranks and axis made one after the other are different groups.
TEST(Groups, OfTheSameRanksAreKeptApart) {
  run_ranks(2, [](World& world) {
    for (int i = 0; i < 5; ++i) {
      const auto group = world.communicator({0, 1}, "again");
      const at::Tensor tensor = floats(3, [&](int64_t) { return 1.0; });
      group->all_reduce(tensor, {.id = program::named_call("sum")});  // not waited for: closing the group lets it end
    }
  });
}

}  // namespace
}  // namespace lockstep::comm
