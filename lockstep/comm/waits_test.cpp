// Who waits for whom: the rule by itself, then ranks of which one is stopped or busy.
#include "lockstep/comm/waits.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <thread>

#include "lockstep/base/text.h"
#include "support/fork_ranks.h"
#include "support/run_ranks.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Waits = std::map<int, std::vector<GroupWait>>;  // by rank

// Whom `rank`, which waits for `peer` on group 1, finds missing.
std::vector<int> chain_of(const Waits& waits, int rank, int peer) {
  const auto chain = follow_waits({.rank = rank, .waits_for = peer, .group = 1, .call = "a"}, [&](const Waiting& wait) {
    const auto said = waits.find(wait.waits_for);
    return said == waits.end() ? std::nullopt : kept_by(said->second, wait.group);
  });
  std::vector<int> ranks;
  for (const Waiting& wait : chain) ranks.push_back(wait.waits_for);
  return ranks;
}

TEST(Waits, AreFollowedFromGroupToGroup) {
  const Waits waits = {{1, {{.group = 2, .waits_for = 2, .awaited = true}}},
                       {2, {{.group = 3, .waits_for = 3, .awaited = true}}}};
  EXPECT_EQ(chain_of(waits, 0, 1), (std::vector{1, 2, 3}));
}

// Rank 1 has a call in flight that waits for rank 5, and goes on beside it: the calls of group 1 do not wait for that.
TEST(Waits, OfCallsBesideWhichARankGoesOnDoNotCount) {
  EXPECT_EQ(chain_of({{1, {{.group = 2, .waits_for = 5}}}}, 0, 1), (std::vector{1}));
  EXPECT_EQ(chain_of({{1, {{.group = 2, .waits_for = 5}, {.group = 3, .waits_for = 4, .awaited = true}}}}, 0, 1),
            (std::vector{1, 4}));
  // It is in the call that is asked for: that counts whoever waits for it.
  EXPECT_EQ(chain_of({{1, {{.group = 3, .waits_for = 4, .awaited = true}, {.group = 1, .waits_for = 5}}}}, 0, 1),
            (std::vector{1, 5}));
}

TEST(Waits, InACircleBlameTheNeighbour) {
  for (const int back_to : {0, 1}) {
    const Waits waits = {{1, {{.group = 2, .waits_for = 2, .awaited = true}}},
                         {2, {{.group = 3, .waits_for = back_to, .awaited = true}}}};
    EXPECT_EQ(chain_of(waits, 0, 1), (std::vector{1}));
  }
}

TEST(Waits, ReadAsOneSentence) {
  EXPECT_EQ(waits_text({{.rank = 0, .waits_for = 1, .call = "recv #2 'b'"}, {.rank = 1, .waits_for = 2, .call = "recv #7 'c'"}}),
            "rank 0 waits for rank 1 (recv #2 'b'), which waits for rank 2 (recv #7 'c')");
}

at::Tensor ones(int64_t numel) { return at::full({numel}, 1.0, at::kFloat); }

// The channels of a pipeline over `ranks`, of which this rank is one.
struct Pipeline {
  Pipeline(World& world, const std::vector<int>& ranks) {
    for (size_t stage = 0; stage < ranks.size(); ++stage)
      if (ranks[stage] == world.rank()) here = stage;
    last = ranks.size() - 1;
    for (size_t stage = 0; stage < last; ++stage)
      if (stage == here || stage + 1 == here) {
        (stage == here ? next_f : before_f) = world.communicator({ranks[stage], ranks[stage + 1]}, "pp");
        (stage == here ? next_b : before_b) = world.communicator({ranks[stage + 1], ranks[stage]}, "pp");
      }
  }
  // One microbatch forwards and backwards; `in_f` before what comes has been sent on.
  void step(const std::function<void()>& in_f = {}) {
    if (here > 0) before_f->recv(at::empty({8}, at::kFloat), 0, {.id = program::named_call("recv_f")}).wait();
    if (in_f) in_f();
    if (here < last) {
      next_f->send(ones(8), 1, {.id = program::named_call("send_f")});
      next_b->recv(at::empty({8}, at::kFloat), 0, {.id = program::named_call("recv_b"), .blocking = true}).wait();
    }
    if (here > 0) before_b->send(ones(8), 1, {.id = program::named_call("send_b")});
  }

  size_t here = 0, last = 0;  // stages
  std::unique_ptr<Communicator> before_f, before_b, next_f, next_b;
};

// Runs `body` in n processes, of which `victim` stops in it; none tells the others that it gives up. What each says.
using Body = std::function<void(World&, const std::function<void()>& stop)>;
std::vector<std::string> said_about_a_stopped_one(int n, int victim, const Body& body) {
  return testing::said_by_forked_ranks(
      n,
      [&](World& world) {
        body(world, [&] {
          if (world.rank() == victim) raise(SIGSTOP);
        });
      },
      {.deadline = milliseconds(1500)}, victim);
}

void expect_all_to_name(int victim, const std::vector<std::string>& said) {
  for (size_t rank = 0; rank < said.size(); ++rank)
    if (static_cast<int>(rank) != victim) {
      EXPECT_THAT(said[rank], AllOf(HasSubstr(cat("LS3002: rank ", victim, " ")), HasSubstr("is stopped"))) << rank;
    }
}

TEST(Stopped, RankOfAPipelineIsNamedByAll) {
  for (const int victim : {3, 2, 1}) {
    const auto said = said_about_a_stopped_one(4, victim, [](World& world, const std::function<void()>& stop) {
      Pipeline pipeline(world, {0, 1, 2, 3});
      pipeline.step();
      pipeline.step(stop);
    });
    expect_all_to_name(victim, said);
    if (victim == 3) {
      EXPECT_THAT(said[0], HasSubstr("rank 0 waits for rank 1 (recv #2 'recv_b' from rank 1), which waits for rank 2 (recv #2 "
                                     "'recv_b' from rank 2), which waits for rank 3 (recv #2 'recv_b' from rank 3)"));
    }
  }
}

// Ranks 0 and 1 are stage 0 of two pipelines, 2 and 3 stage 1; copies of a stage add up their gradients.
TEST(Stopped, RankOfAGridIsNamedByAll) {
  for (const int victim : {3, 0}) {
    const auto said = said_about_a_stopped_one(4, victim, [](World& world, const std::function<void()>& stop) {
      const int rank = world.rank();
      const auto dp = world.communicator({rank / 2 * 2, rank / 2 * 2 + 1}, "dp");
      Pipeline pipeline(world, {rank % 2, rank % 2 + 2});
      for (const bool breaks : {false, true}) {
        pipeline.step(breaks ? stop : std::function<void()>{});
        dp->all_reduce(ones(10), {.id = program::named_call("grad")}).wait();
      }
    });
    expect_all_to_name(victim, said);
  }
}

// It neither waits nor is stopped: it computes, or hangs.
TEST(Busy, RankOfAPipelineIsNamedFromAfar) {
  std::string said;
  EXPECT_ANY_THROW(testing::run_ranks(3,
                     [&](World& world) {
                       Pipeline pipeline(world, {0, 1, 2});
                       pipeline.step();
                       try {
                         pipeline.step([&] {
                           if (world.rank() == 2) std::this_thread::sleep_for(milliseconds(6000));  // beyond all deadlines
                         });
                       } catch (const PeerLostError& error) {
                         // The others are not told, so that each comes to its own deadline.
                         if (world.rank() == 0) said = error.what();
                         if (world.rank() != 0) std::this_thread::sleep_for(milliseconds(500));
                         throw;
                       }
                     },
                     {.deadline = milliseconds(2500)}));  // longer than a busy machine keeps rank 2 from its recv_f
  EXPECT_THAT(said, AllOf(HasSubstr("rank 2 keeps rank 1 waiting in recv #2 'recv_b' from rank 2"),
                          HasSubstr("last seen when it left recv #2 'recv_f' from rank 1"), Not(HasSubstr("is stopped"))));
}

}  // namespace
}  // namespace lockstep::comm
