// The collectives with every tensor staged, "the device" being host memory of its own: what is copied when. On a device, or an
// emulated one, tests/gpu/staged_collectives_test.cpp runs the same.
// A program of its own: it gives test_collectives.h its ranks and tensors.
#include <ATen/ops/empty_like.h>
#include <gmock/gmock.h>

#include <atomic>

#include "lockstep/comm/test_collectives.h"
#include "lockstep/comm/test_in_flight.h"
#include "lockstep/comm/test_unequal_parts.h"
#include "support/run_ranks.h"

namespace lockstep::comm {
namespace {

// Copies of a call, in the order in which they were made: 'f'etch, 'r'oom, 's'tore.
class FakeStager : public Stager {
 public:
  bool stages(const at::Tensor&) const override { return true; }
  std::shared_ptr<StagedCall> begin(const at::Tensor&) override { return std::make_shared<Call>(*this); }

  std::string take_copies() {
    const std::lock_guard lock(mutex_);
    return std::exchange(copies_, {});
  }
  std::function<void()> before_fetch = [] {};

 private:
  class Call : public StagedCall {
   public:
    explicit Call(FakeStager& stager) : stager_(stager) {}
    at::Tensor fetch(const at::Tensor& tensor) override {
      stager_.before_fetch();
      stager_.note('f');
      return tensor.clone();
    }
    at::Tensor room(const at::Tensor& tensor) override {
      stager_.note('r');
      return at::empty_like(tensor);
    }
    void store(const at::Tensor& host, const at::Tensor& tensor) override {
      stager_.note('s');
      tensor.copy_(host);
    }

   private:
    FakeStager& stager_;
  };
  void note(char copy) {
    const std::lock_guard lock(mutex_);
    copies_ += copy;
  }

  std::mutex mutex_;
  std::string copies_;
};

// Each rank with a stager of its own.
void run_staged(int n, std::chrono::milliseconds deadline, const std::function<void(World&, FakeStager&)>& body) {
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(n)));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < n; ++rank)
    ranks.emplace_back([&, rank] {
      const auto stager = std::make_shared<FakeStager>();
      SharedMemoryWorld world(region, rank, n, {.deadline = deadline, .stager = stager});
      body(world, *stager);
    });
  for (std::thread& rank : ranks) rank.join();
}

constexpr std::chrono::seconds kLong{20};

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// A tensor comes to the host where the call reads it, and goes back where the call writes it.
TEST(Staging, CopiesWhatACallReadsAndWrites) {
  run_staged(2, kLong, [](World& world, FakeStager& stager) {
    const auto group = world.communicator({0, 1}, "world");
    const bool root = world.rank() == 1;
    const at::Tensor part = floats(4, [](int64_t) { return 1.0; }), full = room(8), other = room(8);
    const auto copies = [&](Work work) {
      work.wait();
      return stager.take_copies();
    };
    const CallOptions options{.id = program::named_call("copies")};
    EXPECT_EQ(copies(group->all_reduce(part, options)), "fs");
    EXPECT_EQ(copies(group->reduce(part, 1, options)), root ? "fs" : "f");
    EXPECT_EQ(copies(group->broadcast(part, 1, options)), root ? "f" : "rs");
    EXPECT_EQ(copies(group->all_gather(part, full, options)), "frs");
    EXPECT_EQ(copies(group->reduce_scatter(full, part, options)), "frs");
    EXPECT_EQ(copies(group->all_to_all(full, other, options)), "frs");
    EXPECT_EQ(copies(group->all_to_all_v(full, other, std::vector<int64_t>{4, 4}, std::vector<int64_t>{4, 4}, options)), "frs");
    EXPECT_EQ(copies(group->shift(full, other, options)), "frs");
    EXPECT_EQ(copies(group->gather(part, root ? full : at::Tensor(), 1, options)), root ? "frs" : "f");
    EXPECT_EQ(copies(group->scatter(root ? full : at::Tensor(), part, 1, options)), root ? "rfs" : "rs");
    EXPECT_EQ(copies(root ? group->send(part, 0, options) : group->recv(part, 1, options)), root ? "f" : "rs");
    EXPECT_EQ(copies(group->barrier(options)), "");
    const auto alone = world.communicator({world.rank()}, "alone");
    EXPECT_EQ(copies(alone->all_gather(part, other.narrow(0, 0, 4), options)), "");
  });
}

// A rank whose device is still at work has not entered the call: who waits for it says so.
TEST(Staging, ARankEntersACallWhenItsDeviceHasComeThere) {
  std::string message;
  std::promise<void> given_up;
  run_staged(2, std::chrono::milliseconds(1500), [&](World& world, FakeStager& stager) {
    const auto group = world.communicator({0, 1}, "world");
    const at::Tensor tensor = floats(4, [](int64_t) { return 1.0; });
    group->barrier({.id = program::named_call("start")}).wait();
    if (world.rank() == 1) stager.before_fetch = [&] { given_up.get_future().wait(); };
    const std::string said = message_of([&] { group->all_reduce(tensor, {.id = program::named_call("grad")}).wait(); });
    if (world.rank() == 1) return;
    message = said;
    given_up.set_value();
  });
  EXPECT_THAT(message, ::testing::HasSubstr("rank 1 never entered all_reduce #2 'grad'"));
}

TEST(Staging, AFailedCallWritesNothingBack) {
  run_staged(2, kLong, [](World& world, FakeStager& stager) {
    const auto group = world.communicator({0, 1}, "world");
    const at::Tensor tensor = floats(5, [](int64_t i) { return static_cast<double>(i); });
    if (world.rank() == 1) stager.before_fetch = [] { throw EnvironmentError({.code = "LS3001", .what = "no device"}); };
    const std::string said = message_of([&] { group->all_reduce(tensor, {.id = program::named_call("grad")}).wait(); });
    EXPECT_THAT(said, ::testing::HasSubstr(world.rank() == 1 ? "no device" : "LS3002"));
    EXPECT_EQ(message_of([&] { group->all_reduce(tensor, {.id = program::named_call("again")}).wait(); }), said);
    EXPECT_THAT(stager.take_copies(), ::testing::Not(::testing::HasSubstr("s")));
    expect(
        tensor, [](int64_t i) { return static_cast<double>(i); }, "after the failure");
  });
}

}  // namespace

TensorsOfCalls tensors_of_calls() { return {.largest = 100003}; }
void run_ranks(int n, const std::function<void(World&)>& body) {
  testing::run_ranks(n, body, {.stager = std::make_shared<FakeStager>()});
}

}  // namespace lockstep::comm
