// Ranks that disagree, throw, never come or die.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <thread>
#include <vector>

#include "lockstep/base/text.h"
#include "support/fork_ranks.h"
#include "support/run_ranks.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::code_of;
using testing::fork_ranks;
using testing::run_ranks;

at::Tensor ones(int64_t numel) {
  return at::full({numel}, 1.0, at::kFloat);
}

template <typename Kind>
std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Kind& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Mismatch, OfSizesShowsBothCalls) {
  const std::string text = message_of<InternalError>([] {
    run_ranks(2, [](World& world) {
      const auto group = world.communicator({0, 1}, "dp");
      group->all_reduce(ones(100 + world.rank()), {.id = program::named_call("grad")}).wait();
    });
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("all_reduce #1 'grad' of 100 fp32"), HasSubstr("all_reduce #1 'grad' of 101 fp32")));
}

TEST(Mismatch, OfOperationsSitesAndTypesIsFound) {
  const auto differ = [](const std::function<void(Communicator&)>& first,
                         const std::function<void(Communicator&)>& second) {
    return message_of<InternalError>([&] {
      run_ranks(2, [&](World& world) {
        const auto group = world.communicator({0, 1}, "dp");
        (world.rank() == 0 ? first : second)(*group);
      });
    });
  };
  EXPECT_THAT(differ([](Communicator& c) { c.all_reduce(ones(8), {.id = program::named_call("a")}).wait(); },
                     [](Communicator& c) { c.broadcast(ones(8), 1, {.id = program::named_call("a")}).wait(); }),
              AllOf(HasSubstr("all_reduce #1 'a'"), HasSubstr("broadcast #1 'a'")));
  EXPECT_THAT(differ([](Communicator& c) { c.all_reduce(ones(8), {.id = program::named_call("a")}).wait(); },
                     [](Communicator& c) { c.all_reduce(ones(8), {.id = program::named_call("b")}).wait(); }),
              AllOf(HasSubstr("'a'"), HasSubstr("'b'")));
  EXPECT_THAT(differ([](Communicator& c) { c.all_reduce(ones(8), {.id = program::named_call("a")}).wait(); },
                     [](Communicator& c) { c.all_reduce(ones(8), {.id = program::named_call("a"), .op = ReduceOp::kMax}).wait(); }),
              HasSubstr("max"));
  EXPECT_THAT(differ([](Communicator& c) { c.shift(ones(8), at::empty({8}, at::kFloat), {.id = program::named_call("a")}).wait(); },
                     [](Communicator& c) { c.shift(ones(4), at::empty({4}, at::kFloat), {.id = program::named_call("a")}).wait(); }),
              AllOf(HasSubstr("shift #1 'a' of 8"), HasSubstr("shift #1 'a' of 4")));
  EXPECT_THAT(differ([](Communicator& c) { c.send(ones(8), 1, {.id = program::named_call("a")}).wait(); },
                     [](Communicator& c) { c.recv(at::empty({4}, at::kFloat), 0, {.id = program::named_call("a")}).wait(); }),
              AllOf(HasSubstr("send and recv #1"), HasSubstr("of 8"), HasSubstr("of 4")));
}

// Rank 0 sends three rows where rank 1 has been told of four; the other way they agree.
TEST(Mismatch, OfTheRowsBetweenTwoRanksIsFound) {
  const std::string text = message_of<InternalError>([] {
    run_ranks(2, [](World& world) {
      const auto group = world.communicator({0, 1}, "ep");
      const std::vector<std::vector<int64_t>> sent = {{1, 3}, {2, 0}}, received = {{1, 2}, {4, 0}};
      const auto rank = static_cast<size_t>(world.rank());
      const at::Tensor output = ones(rank == 0 ? 15 : 20);
      group->all_to_all_v(ones(rank == 0 ? 20 : 10).view({-1, 5}), output.view({-1, 5}), sent[rank], received[rank],
                          {.id = program::named_call("dispatch")}).wait();
    });
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("all_to_all #1 'dispatch' of 15 fp32"), HasSubstr("all_to_all #1 'dispatch' of 20 fp32")));
}

TEST(Checks, RefuseRowsThatAreNotThoseOfTheTensor) {
  run_ranks(2, [](World& world) {
    const auto group = world.communicator({0, 1}, "ep");
    const auto refused = [&](const at::Tensor& input, const at::Tensor& output, const std::vector<int64_t>& sent,
                             const std::vector<int64_t>& received) {
      return message_of<InternalError>([&] { group->all_to_all_v(input, output, sent, received, {.id = program::named_call("rows")}); });
    };
    const at::Tensor four = ones(8).view({4, 2}), other = ones(8).view({4, 2});
    EXPECT_THAT(refused(four, other, {2, 1}, {2, 2}), HasSubstr("the rows of all ranks are not those of the tensor"));
    EXPECT_THAT(refused(four, other, {2, 2}, {4}), HasSubstr("rows of 1 ranks"));
    EXPECT_THAT(refused(four, other, {5, -1}, {2, 2}), HasSubstr("negative"));
    EXPECT_THAT(refused(four, ones(12).view({4, 3}), {2, 2}, {2, 2}), HasSubstr("all_to_all 'rows': rows of [4, 2] and [4, 3]"));
    EXPECT_THAT(refused(four, other, {3, 1}, {2, 2}), HasSubstr("to itself"));
    EXPECT_THAT(refused(four, four, {2, 2}, {2, 2}), HasSubstr("in place"));
  });
}

// On the board: in its header, where both are there; else by what the peer says that it does.
TEST(Mismatch, OnTheBoardIsFound) {
  const auto differ = [](const std::function<void(Communicator&)>& first,
                         const std::function<void(Communicator&)>& second) {
    return message_of<InternalError>([&] {
      run_ranks(2,
                [&](World& world) {
                  const auto group = world.communicator({0, 1}, "tp");
                  group->barrier({.id = program::named_call("start")}).wait();
                  (world.rank() == 0 ? first : second)(*group);
                },
                {.limit = std::chrono::seconds(15)});
    });
  };
  const auto exchange = [](int64_t numel) {
    return [numel](Communicator& c) {
      c.all_reduce(ones(numel), {.id = program::named_call("a"), .algorithm = program::Algorithm::kExchange, .blocking = true}).wait();
    };
  };
  EXPECT_THAT(differ(exchange(8), exchange(9)),
              AllOf(HasSubstr("all_reduce #2 'a' of 8 fp32 (exchange"), HasSubstr("all_reduce #2 'a' of 9 fp32")));
  EXPECT_THAT(differ(exchange(8),
                     [](Communicator& c) {
                       c.all_reduce(ones(8), {.id = program::named_call("a"), .algorithm = program::Algorithm::kDirect}).wait();
                     }),
              AllOf(HasSubstr("exchange"), HasSubstr("direct")));
  EXPECT_THAT(differ(exchange(8), [](Communicator& c) { c.broadcast(ones(8), 0, {.id = program::named_call("b")}).wait(); }),
              AllOf(HasSubstr("member 0: all_reduce #2 'a'"), HasSubstr("member 1: broadcast #2 'b'")));
}

TEST(Checks, RefuseTensorsThatCannotBeSent) {
  run_ranks(1, [](World& world) {
    const auto group = world.communicator({0}, "dp");
    EXPECT_THAT(message_of<InternalError>([&] { group->all_reduce(at::empty({2}, at::kHalf), {.id = program::named_call("x")}); }),
                AllOf(HasSubstr("all_reduce 'x'"), HasSubstr("Half")));
    EXPECT_THAT(message_of<InternalError>([&] {
                  group->all_reduce(at::empty({4, 4}, at::kFloat).t(), {.id = program::named_call("x")});
                }),
                HasSubstr("not contiguous"));
    EXPECT_THAT(message_of<InternalError>([&] { group->all_gather(ones(2), ones(3), {.id = program::named_call("x")}); }),
                AllOf(HasSubstr("all_gather 'x'"), HasSubstr("(2) == full.numel() (3)")));
  });
  EXPECT_THAT(message_of<InternalError>([] {
                run_ranks(2, [](World& world) {
                  const auto group = world.communicator({0, 1}, "dp");
                  group->broadcast(ones(2), 0, {.id = program::named_call("x"), .algorithm = program::Algorithm::kRing}).wait();
                });
              }),
              AllOf(HasSubstr("broadcast 'x'"), HasSubstr("ring")));
}

TEST(MissingRank, IsNamedWithWhatItDidLast) {
  const std::string text = message_of<PeerLostError>([] {
    run_ranks(3,
              [](World& world) {
                const auto group = world.communicator({0, 1, 2}, "dp");
                group->all_reduce(ones(10), {.id = program::named_call("grad")}).wait();
                // Rank 2 is busy with something else; ranks 0 and 1 wait for it, 0 only by way of 1.
                if (world.rank() == 2)
                  std::this_thread::sleep_for(milliseconds(1200));
                else
                  group->all_reduce(ones(10), {.id = program::named_call("loss")}).wait();
              },
              {.deadline = milliseconds(300)});
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("LS3002"), HasSubstr("rank 2 never entered all_reduce #2 'loss' of group dp[0,1,2]"),
                    HasSubstr("last seen when it left all_reduce #1 'grad'"), HasSubstr("has waited"),
                    HasSubstr("its last calls on this group"), HasSubstr("still inside")));
}

TEST(MissingRank, OfABlockingCallIsNamedToo) {
  const std::string text = message_of<PeerLostError>([] {
    run_ranks(3,
              [](World& world) {
                const auto group = world.communicator({0, 1, 2}, "tp");
                const CallOptions call{.id = program::named_call("half"), .algorithm = program::Algorithm::kExchange, .blocking = true};
                group->all_reduce(ones(10), call).wait();
                if (world.rank() == 2)
                  std::this_thread::sleep_for(milliseconds(1200));
                else
                  group->all_reduce(ones(10), call).wait();
              },
              {.deadline = milliseconds(300)});
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr("LS3002"), HasSubstr("rank 2 never entered all_reduce #2 'half' of group tp[0,1,2]"),
                    HasSubstr("last seen when it left all_reduce #1 'half'"), HasSubstr("still inside")));
}

TEST(MissingRank, ThatNeverJoinedIsNamed) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(2)));
  SharedMemoryWorld world(region, 0, 2, {.deadline = milliseconds(100)});
  const auto group = world.communicator({0, 1}, "dp");
  EXPECT_THAT(message_of<PeerLostError>([&] { group->barrier({.id = program::named_call("start")}).wait(); }),
              HasSubstr("rank 1 never joined the job; barrier #1 'start' of group dp[0,1] lacks it"));
  // What failed once stays failed, at once.
  EXPECT_THROW(group->barrier({.id = program::named_call("again")}).wait(), PeerLostError);
}

TEST(MissingRank, ThatLeftIsNoticedLongBeforeTheDeadline) {
  const std::string text = message_of<PeerLostError>([] {
    run_ranks(2,
              [](World& world) {
                const auto group = world.communicator({0, 1}, "dp");
                group->barrier({.id = program::named_call("start")}).wait();
                if (world.rank() == 0) group->recv(at::empty({1}, at::kFloat), 1, {.id = program::named_call("act")}).wait();
              },
              {.deadline = milliseconds(60000), .limit = std::chrono::seconds(20)});
  });
  EXPECT_THAT(text, HasSubstr("rank 1 has closed the group; recv #1 'act' from rank 1 of group dp[0,1] lacks it"));
}

TEST(Failure, OfOneRankReleasesTheOthers) {
  std::atomic<int> released = 0;
  const std::string text = message_of<DataError>([&] {
    run_ranks(4,
              [&](World& world) {
                const auto group = world.communicator({0, 1, 2, 3}, "dp");
                if (world.rank() == 3) throw DataError({.code = "LS1200", .what = "no such file"});
                try {
                  group->all_reduce(ones(10), {.id = program::named_call("grad")}).wait();
                } catch (const PeerLostError& error) {
                  ++released;
                  throw;
                }
              },
              {.deadline = milliseconds(60000), .limit = std::chrono::seconds(20)});
  });
  EXPECT_THAT(text, HasSubstr("no such file"));
  EXPECT_EQ(released, 3);
}

TEST(Failure, OfARankWithCallsInFlightDoesNotHoldItUp) {
  // Rank 0's call can never end; the exception closes its communicator nevertheless.
  EXPECT_THAT(message_of<DataError>([] {
                run_ranks(2,
                          [](World& world) {
                            const auto group = world.communicator({0, 1}, "dp");
                            if (world.rank() == 1) return std::this_thread::sleep_for(milliseconds(300));
                            group->all_reduce(ones(10), {.id = program::named_call("grad")});
                            throw DataError({.code = "LS1200", .what = "too short"});
                          },
                          {.deadline = milliseconds(60000), .limit = std::chrono::seconds(20)});
              }),
              HasSubstr("too short"));
}

TEST(Failure, ReasonReachesThePeers) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(2)));
  SharedMemoryWorld first(region, 0, 2);
  SharedMemoryWorld second(region, 1, 2);
  const auto group = first.communicator({0, 1}, "dp");
  Work work = group->barrier({.id = program::named_call("end")});
  second.abort("no space left on the disk");
  EXPECT_THAT(message_of<PeerLostError>([&] { work.wait(); }),
              AllOf(HasSubstr("LS3003"), HasSubstr("rank 1 stopped the job while rank 0 was in barrier #1 'end'"),
                    HasSubstr("no space left on the disk")));
}

TEST(FlightRing, KeepsTheLastCalls) {
  run_ranks(2, [](World& world) {
    const auto group = world.communicator({0, 1}, "dp");
    for (int call = 0; call < 70; ++call) group->barrier({.id = program::named_call("step")});
    group->take_ledger();  // waits for them
    const std::vector<std::string> lines = split(group->last_calls(), '\n');
    ASSERT_EQ(lines.size(), 65u);  // 64 and the end of the last
    EXPECT_THAT(lines[0], AllOf(HasSubstr("barrier #7 'step', 8 B, entered"), HasSubstr("took")));
    EXPECT_THAT(lines[63], HasSubstr("barrier #70 'step'"));
  });
}

TEST(World, RefusesRanksThatDoNotAgree) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(2)));
  const SharedMemoryWorld first(region, 0, 2);
  EXPECT_THROW(SharedMemoryWorld(region, 1, 3), ConfigError);
  EXPECT_THROW(SharedMemoryWorld(region, 0, 2), ConfigError);
}

TEST(World, SaysWhenTheRegionIsFull) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(2)));
  SharedMemoryWorld world(region, 0, 2);
  EXPECT_THAT(message_of<EnvironmentError>([&] {
                for (int i = 0; i < 100; ++i) world.communicator({0, 1}, "again");
              }),
              AllOf(HasSubstr("LS3006"), HasSubstr("no room for another group")));
}

TEST(Processes, AllReduceOverAMemfd) {
  constexpr int n = 4;
  const launch::SharedRegion region = launch::SharedRegion::memfd(launch::region_bytes(n));
  const auto children = fork_ranks(n, region, [](World& world) {
    const auto group = world.communicator({0, 1, 2, 3}, "world");
    for (const int64_t numel : {1, 1000, 1000003}) {
      const at::Tensor tensor = ones(numel);
      group->all_reduce(tensor, {.id = program::named_call("sum")}).wait();
      const float* data = tensor.const_data_ptr<float>();
      for (int64_t i = 0; i < numel; ++i)
        if (data[i] != n) return 1;
    }
    return 0;
  });
  for (const pid_t child : children) EXPECT_EQ(code_of(child), 0);
}

void expect_that_a_killed_one_is_named(program::Algorithm algorithm) {
  constexpr int n = 3;
  const launch::SharedRegion region = launch::SharedRegion::memfd(launch::region_bytes(n));
  const auto children = fork_ranks(n, region, [algorithm](World& world) {
    const auto group = world.communicator({0, 1, 2}, "world");
    group->barrier({.id = program::named_call("start")}).wait();
    if (world.rank() == 2) raise(SIGKILL);
    const std::string text = message_of<PeerLostError>([&] {
      for (;;) group->all_reduce(ones(10), {.id = program::named_call("grad"), .algorithm = algorithm, .blocking = true}).wait();
    });
    const bool named =
        text.find(cat("rank 2 (process ")) != std::string::npos && text.find("died") != std::string::npos;
    // Who learns of it from a peer that has gone already is told by way of that peer, or that it has closed the group.
    if (!named) std::fprintf(stderr, "rank %d: %s\n", world.rank(), text.c_str());
    return named ? 0 : 1;
  });
  // Rank 2 stays unreaped until the end: even then its peers see that it has ended.
  EXPECT_EQ(code_of(children[0]), 0);
  EXPECT_EQ(code_of(children[1]), 0);
  EXPECT_EQ(code_of(children[2]), -SIGKILL);
}

TEST(Processes, AKilledOneIsNamedByTheOthersLongBeforeTheDeadline) {
  expect_that_a_killed_one_is_named(program::Algorithm::kRing);
  expect_that_a_killed_one_is_named(program::Algorithm::kExchange);
}

// It fell asleep waiting for rank 0 and was stopped there: what it says of itself is out of date.
TEST(Processes, OneStoppedInAWaitIsNamed) {
  constexpr int n = 3;
  const launch::SharedRegion region = launch::SharedRegion::memfd(launch::region_bytes(n));
  const auto children = fork_ranks(
      n, region,
      [](World& world) {
        const auto group = world.communicator({0, 1, 2}, "world");
        group->barrier({.id = program::named_call("start")}).wait();
        if (world.rank() == 1) {
          std::thread([] {
            std::this_thread::sleep_for(milliseconds(300));
            raise(SIGSTOP);
          }).detach();
        } else {
          std::this_thread::sleep_for(milliseconds(900));
        }
        const std::string text = message_of<PeerLostError>(
            [&] { group->all_reduce(ones(10), {.id = program::named_call("grad"), .algorithm = program::Algorithm::kRing}).wait(); });
        const bool named = text.find("rank 1 does not go on with all_reduce #2 'grad'") != std::string::npos;
        if (!named) std::fprintf(stderr, "rank %d: %s\n", world.rank(), text.c_str());
        world.abort(text);
        return named ? 0 : 1;
      },
      {.deadline = milliseconds(1500)});
  EXPECT_EQ(code_of(children[0]), 0);
  EXPECT_EQ(code_of(children[2]), 0);
  kill(children[1], SIGKILL);
  EXPECT_EQ(code_of(children[1]), -SIGKILL);
}

}  // namespace
}  // namespace lockstep::comm
