// Backend nccl when something goes wrong, with NCCL itself replaced.
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "lockstep/base/text.h"
#include "lockstep/comm/test_nccl.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The message of the Error that `act` throws.
std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return cat(error.message().code, ": ", error.what());
  }
  return "nothing";
}

std::vector<int> all(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  return ranks;
}

// Until every rank has come here, by a way that is not under test.
void meet(FakeDevice& device, const std::string& place, int ranks) {
  device.store->set(cat(place, "/", device.shared->rank()), "");
  for (int rank = 0; rank < ranks; ++rank) device.store->get(cat(place, "/", rank), std::chrono::seconds(20));
}

// `act` of rank 0 in a group of all `n`, of which the others make no call; what it throws.
std::string alone_in_a_call(int n, milliseconds deadline, const std::function<void(Communicator&, FakeDevice&)>& act,
                            const std::function<void(World&)>& others = {}) {
  std::string message;
  run_nccl_ranks(n, deadline, [&](World& world, FakeDevice& device) {
    const auto group = world.communicator(all(world), "dp");
    meet(device, "made", n);  // what the others do must not end it
    if (world.rank() == 0)
      message = message_of([&] { act(*group, device); });
    else if (others)
      others(world);
    meet(device, "end", n);
  });
  return message;
}

at::Tensor on_device() { return at::ones({4}); }
at::Tensor on_host() { return at::ones({3}); }

void wait_for(const Work& work) {
  while (!work.done()) std::this_thread::sleep_for(milliseconds(1));
  Work(work).wait();
}

TEST(Deadline, NamesTheRankThatDoesNotCome) {
  for (const at::Tensor& tensor : {on_device(), on_host()})
    EXPECT_THAT(alone_in_a_call(3, milliseconds(2500),
                                [&](Communicator& group, FakeDevice&) {
                                  wait_for(group.all_reduce(tensor, {.id = program::named_call("grad")}));
                                }),
                AllOf(HasSubstr("LS3002"), HasSubstr("rank "), HasSubstr("all_reduce #1 'grad' of group dp[0,1,2]")))
        << tensor.numel();
}

TEST(Deadline, OnTheDeviceItSaysWhatTheOthersDid) {
  EXPECT_THAT(alone_in_a_call(2, milliseconds(2500),
                              [&](Communicator& group, FakeDevice&) {
                                wait_for(group.all_reduce(on_device(), {.id = program::named_call("grad")}));
                              }),
              AllOf(HasSubstr("rank 1 never entered all_reduce #1 'grad'"), HasSubstr("its last calls on this group"),
                    HasSubstr("still inside")));
}

TEST(Deadline, OnTheHostARankIsNamedByOneThatWaitsForItsNeighbour) {
  std::string message;
  run_nccl_ranks(3, milliseconds(2500), [&](World& world, FakeDevice& device) {
    const int rank = world.rank();
    const auto from = rank < 2 ? world.communicator({rank + 1, rank}, "pp") : nullptr;
    const auto to = rank > 0 ? world.communicator({rank, rank - 1}, "pp") : nullptr;
    if (rank < 2) {
      const std::string said = message_of([&] { from->recv(on_host(), 0, {.id = program::named_call("recv_b")}).wait(); });
      if (rank == 0) message = said;
    }
    meet(device, "end", 3);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("LS3002"), HasSubstr("rank 2 keeps rank 1 waiting in recv #1 'recv_b' from rank 2"),
                             HasSubstr("rank 0 waits for rank 1 (recv #1 'recv_b' from rank 1), which waits for rank 2")));
}

TEST(Deadline, AGroupThatARankDoesNotMake) {
  std::string message;
  run_nccl_ranks(2, milliseconds(2500), [&](World& world, FakeDevice& device) {
    if (world.rank() == 1) message = message_of([&] { world.communicator(all(world), "dp"); });
    meet(device, "end", 2);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("LS3002"), HasSubstr("rank 0 has not made the group yet"), HasSubstr("dp[0,1]")));
}

TEST(Abort, ReachesThoseWhoWait) {
  for (const at::Tensor& tensor : {on_device(), on_host()})
    EXPECT_THAT(alone_in_a_call(
                    2, std::chrono::seconds(20),
                    [&](Communicator& group, FakeDevice&) { wait_for(group.all_reduce(tensor, {.id = program::named_call("grad")})); },
                    [](World& world) { world.abort("the disk is full"); }),
                AllOf(HasSubstr("LS3003"), HasSubstr("rank 1 stopped the job"), HasSubstr("the disk is full")))
        << tensor.numel();
}

TEST(Failure, OfNcclIsTypedAndStays) {
  for (const bool peer_lost : {true, false}) {
    std::string first, second;
    alone_in_a_call(2, std::chrono::seconds(20), [&](Communicator& group, FakeDevice& device) {
      device.peer_lost = peer_lost;
      device.fails = true;
      first = message_of([&] { group.all_reduce(on_device(), {.id = program::named_call("grad")}); });
      second = message_of([&] { group.all_reduce(on_device(), {.id = program::named_call("again")}); });
    });
    EXPECT_THAT(first, AllOf(HasSubstr(peer_lost ? "LS3002" : "LS3042"),
                             HasSubstr("ncclAllReduce: the fake failed (as told)"), HasSubstr("of group dp[0,1]")));
    EXPECT_EQ(first, second);
  }
}

// A call on the device fails while nobody asks: the next one says so.
TEST(Failure, OfACallInFlightIsToldByItsWork) {
  std::string message, next;
  alone_in_a_call(2, std::chrono::seconds(20), [&](Communicator& group, FakeDevice& device) {
    const Work work = group.all_reduce(on_device(), {.id = program::named_call("grad")});
    device.fails = true;
    message = message_of([&] { wait_for(work); });
    next = message_of([&] { group.all_reduce(on_device(), {.id = program::named_call("next")}); });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("LS3042"), HasSubstr("all_reduce #1 'grad'")));
  EXPECT_EQ(next, message);
}

TEST(Failure, AGroupThatAnErrorClosesWithoutCallsLeavesTheOthers) {
  run_nccl_ranks(2, std::chrono::seconds(20), [&](World& world, FakeDevice& device) {
    const auto other = world.communicator(all(world), "world");
    EXPECT_EQ(message_of([&] {
                const auto group = world.communicator(all(world), "dp");
                throw ConfigError({.code = "LS1", .what = "no"});
              }),
              "LS1: error LS1: no");
    EXPECT_EQ(message_of([&] {
                wait_for(other->all_reduce(on_device(), {.id = program::named_call("grad")}));
                other->confirm();
              }),
              "nothing");
    meet(device, "end", 2);
  });
}

// What rank 0 hears of a call that it has waited for, as one waits for a GPU: the stream behind the call goes on when the
// call is aborted, and the host with it.
struct Heard {
  std::string before;                                     // confirm(), with nothing wrong yet
  std::string at_abort;                                   // the moment in which the host may go on
  std::string same_group, other_group, own_group;         // confirm(), once the aborted call looks done
  std::string same_work, next_call;
};
Heard aborted_call(milliseconds deadline, const std::function<void(FakeDevice&)>& cause,
                   const std::function<void(World&)>& cause_of_rank_1 = {}) {
  Heard heard;
  run_nccl_ranks(3, deadline, [&](World& world, FakeDevice& device) {
    const auto group = world.communicator(all(world), "dp");
    const auto pair = world.rank() < 2 ? world.communicator({0, 1}, "tp") : nullptr;
    const auto alone = world.communicator({world.rank()}, "pp");
    meet(device, "made", 3);
    if (world.rank() == 0) {
      device.orders_only = true;
      device.aborting = [&] {
        if (heard.at_abort.empty()) heard.at_abort = message_of([&] { group->confirm(); });
      };
      Work work = group->all_reduce(on_device(), {.id = program::named_call("grad")});
      work.wait();
      heard.before = message_of([&] { group->confirm(); });
      device.store->set("called", "");
      cause(device);
      device.store->get(aborted_key(0), std::chrono::seconds(20));
      heard.same_group = message_of([&] { group->confirm(); });
      heard.other_group = message_of([&] { pair->confirm(); });
      heard.own_group = message_of([&] { alone->confirm(); });
      heard.same_work = message_of([&] { work.wait(); });
      heard.next_call = message_of([&] { pair->all_reduce(on_device(), {.id = program::named_call("next")}); });
    } else if (world.rank() == 1 && cause_of_rank_1) {
      device.store->get("called", std::chrono::seconds(20));
      cause_of_rank_1(world);
    }
    meet(device, "end", 3);
  });
  return heard;
}

void expect_heard_by_all(const Heard& heard, const ::testing::Matcher<std::string>& what) {
  EXPECT_THAT(heard.same_group, what);
  EXPECT_EQ(heard.at_abort, heard.same_group);
  EXPECT_EQ(heard.other_group, heard.same_group);
  EXPECT_EQ(heard.own_group, heard.same_group);
  EXPECT_EQ(heard.same_work, heard.same_group);
  EXPECT_EQ(heard.next_call, heard.same_group);
}

TEST(Confirm, KnowsThatACallCameToItsDeadline) {
  expect_heard_by_all(aborted_call(milliseconds(2500), [](FakeDevice&) {}),
                      AllOf(HasSubstr("LS3002"), HasSubstr("rank 1 never entered all_reduce #1 'grad' of group dp[0,1,2]")));
}

TEST(Confirm, KnowsOfAnErrorOfNccl) {
  const Heard heard = aborted_call(std::chrono::seconds(20), [](FakeDevice& device) { device.fails = true; });
  EXPECT_EQ(heard.before, "nothing");
  expect_heard_by_all(heard, AllOf(HasSubstr("LS3042"), HasSubstr("the fake failed (as told)")));
}

TEST(Confirm, KnowsOfAnotherRanksNote) {
  const Heard heard = aborted_call(
      std::chrono::seconds(20), [](FakeDevice&) {}, [](World& world) { world.abort("the disk is full"); });
  EXPECT_EQ(heard.before, "nothing");
  EXPECT_THAT(heard.same_group, AllOf(HasSubstr("LS3003"), HasSubstr("rank 1 stopped the job"), HasSubstr("disk is full")));
  EXPECT_THAT(heard.same_work, HasSubstr("rank 1 stopped the job"));
  EXPECT_EQ(heard.at_abort, heard.same_group);
  EXPECT_EQ(heard.other_group, heard.same_group);
}

// A call that a peer aborts has handed on what it had: here it looks done before this rank's watch can know.
TEST(Confirm, KnowsThatAPeerHasGivenUp) {
  std::string before, after, next;
  run_nccl_ranks(3, std::chrono::seconds(20), [&](World& world, FakeDevice& device) {
    const auto group = world.rank() > 0 ? world.communicator({1, 2}, "dp") : nullptr;
    const auto pair = world.rank() < 2 ? world.communicator({0, 1}, "tp") : nullptr;
    if (world.rank() == 0) before = message_of([&] { pair->confirm(); });
    meet(device, "made", 3);
    if (world.rank() == 1) {
      device.orders_only = true;
      device.aborting = [&] {
        device.store->set("aborting", "");
        device.store->get("asked", std::chrono::seconds(20));
      };
      group->all_reduce(on_device(), {.id = program::named_call("grad")}).wait();
      device.fails = true;
      device.store->get(aborted_key(1), std::chrono::seconds(20));
    } else if (world.rank() == 0) {
      device.store->get("aborting", std::chrono::seconds(20));
      after = message_of([&] { pair->confirm(); });
      next = message_of([&] { pair->all_reduce(on_device(), {.id = program::named_call("next")}); });
      device.store->set("asked", "");
    }
    meet(device, "end", 3);
  });
  EXPECT_EQ(before, "nothing");
  EXPECT_THAT(after, AllOf(HasSubstr("LS3003"), HasSubstr("rank 1 has given up its calls"), HasSubstr("LS3042"),
                           HasSubstr("all_reduce #1 'grad'")));
  EXPECT_EQ(next, after);
}

// While a call is in flight that rank 1 comes to only when rank 0 has confirmed.
TEST(Confirm, WaitsForNobodyAndThrowsNothingWhileAllIsWell) {
  run_nccl_ranks(2, std::chrono::seconds(20), [&](World& world, FakeDevice& device) {
    const auto group = world.communicator(all(world), "dp");
    device.orders_only = true;
    if (world.rank() == 1) device.store->get("confirmed", std::chrono::seconds(20));
    const at::Tensor tensor = on_device();
    const Work work = group->all_reduce(tensor, {.id = program::named_call("grad")});
    EXPECT_EQ(message_of([&] { group->confirm(); }), "nothing");
    if (world.rank() == 0) device.store->set("confirmed", "");
    wait_for(work);
    EXPECT_EQ(message_of([&] { group->confirm(); }), "nothing");
    for (int64_t i = 0; i < tensor.numel(); ++i) EXPECT_EQ(tensor.const_data_ptr<float>()[i], 2.0f);
    meet(device, "end", 2);
  });
}

TEST(Tcp, APeerThatClosesTheGroupIsNamed) {
  std::string message;
  run_nccl_ranks(2, std::chrono::seconds(20), [&](World& world, FakeDevice& device) {
    auto group = world.communicator(all(world), "dp");
    group->barrier({.id = program::named_call("start")}).wait();
    if (world.rank() == 1)
      group.reset();
    else
      message = message_of([&] { group->all_reduce(on_host(), {.id = program::named_call("grad")}).wait(); });
    meet(device, "end", 2);
  });
  EXPECT_THAT(message, AllOf(HasSubstr("LS3002"), HasSubstr("rank 1 has closed the group")));
}

TEST(Join, SaysHowManyGroupsOfSeveralRanksItTook) {
  std::string said;
  run_nccl_ranks(2, std::chrono::seconds(20), [&](World& world, FakeDevice&) {
    const auto group = world.communicator(all(world), "dp"), alone = world.communicator({world.rank()}, "tp");
    if (world.rank() == 0) said = world.startup();
  });
  EXPECT_THAT(said, AllOf(HasSubstr("nccl: 1 group joined in "), HasSubstr("(fake)")));
}

TEST(Join, NeedsAGpuForEveryLocalRank) {
  FakeDevice device;
  device.gpus = 2;
  EXPECT_THAT(message_of([&] {
                join_nccl(5, 8, std::make_shared<testing::MemoryStore>(), {.deadline = milliseconds(1000), .local_rank = 2},
                          std::make_unique<FakeNccl>(device));
              }),
              AllOf(HasSubstr("LS3041"), HasSubstr("rank 5 is rank 2 of this host, which has 2 GPUs")));
}

TEST(Join, ABuildWithoutNcclIsRefusedByName) {
  if (std::filesystem::exists(std::filesystem::read_symlink("/proc/self/exe").parent_path() / "liblockstep_nccl.so"))
    GTEST_SKIP() << "this build has the backend";
  EXPECT_THAT(message_of([] { join_nccl(0, 1, std::make_shared<testing::MemoryStore>(), {}); }),
              AllOf(HasSubstr("LS3040"), HasSubstr("backend nccl is not built")));
}

}  // namespace
}  // namespace lockstep::comm
