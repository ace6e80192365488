#include "lockstep/comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kLong{60000};

// A port of the loopback interface that this test holds.
struct Listener {
  int descriptor = listen_at({"127.0.0.1", 0});
  int port = port_of(descriptor);
};

RendezvousOptions options_of(const Listener& listener, int rank, int world_size, milliseconds deadline = kLong) {
  RendezvousOptions options;
  options.place = TcpPlace{.host = "127.0.0.1", .port = listener.port};
  options.serve = rank == 0;
  options.listening_fd = rank == 0 ? listener.descriptor : -1;
  options.token = "ours";
  options.attempt = "0";
  options.rank = rank;
  options.world_size = world_size;
  options.deadline = deadline;
  return options;
}

std::string error_of(const std::function<void()>& part) {
  try {
    part();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Rendezvous, RanksSeeEachOthersKeys) {
  const Listener listener;
  std::vector<std::string> seen(3);
  const auto play = [&](int rank) {
    const auto store = open_store(options_of(listener, rank, 3));
    store->set(cat("from ", rank), std::string("bytes\0of", 8) + std::to_string(rank));
    seen[static_cast<size_t>(rank)] = store->get(cat("from ", (rank + 1) % 3), kLong);
    return store;
  };
  std::jthread rank2([&] { play(2); }), rank1([&] { play(1); });
  const auto served = play(0);  // until the others are done
  rank1.join();
  rank2.join();
  EXPECT_EQ(seen, (std::vector<std::string>{std::string("bytes\0of1", 9), std::string("bytes\0of2", 9),
                                            std::string("bytes\0of0", 9)}));
}

TEST(Rendezvous, AKeyThatNobodySetsIsNamed) {
  const Listener listener;
  const auto store = open_store(options_of(listener, 0, 1));
  EXPECT_FALSE(store->has("id"));
  EXPECT_THAT(error_of([&] { store->get("id", milliseconds(50)); }), AllOf(HasSubstr("LS3126"), HasSubstr("'id'")));
}

TEST(Rendezvous, NamesTheRanksThatNeverCome) {
  const Listener listener;
  std::string of_rank2;
  std::jthread rank2([&] { of_rank2 = error_of([&] { open_store(options_of(listener, 2, 4)); }); });
  EXPECT_THAT(error_of([&] { open_store(options_of(listener, 0, 4, milliseconds(2000))); }),
              AllOf(HasSubstr("LS3123"), HasSubstr("never came; rank 0 has waited"), HasSubstr("1, ")));
  rank2.join();
  EXPECT_THAT(of_rank2, testing::AnyOf(HasSubstr("LS3127"), HasSubstr("LS3123")));  // rank 0 has gone
}

TEST(Rendezvous, NamesRank0WhereNothingListens) {
  const Listener listener;
  close(listener.descriptor);
  EXPECT_THAT(error_of([&] { open_store(options_of(listener, 1, 2, milliseconds(50))); }),
              AllOf(HasSubstr("LS3123"), HasSubstr("rank 0 never came: nothing listens at 127.0.0.1:")));
}

TEST(Rendezvous, ARankOfAnotherJobOrWorldIsRefused) {
  const Listener listener;
  std::atomic<bool> done = false;
  std::jthread rank0([&] {
    const auto store = open_store(options_of(listener, 0, 2));
    done.wait(false);
  });
  RendezvousOptions stranger = options_of(listener, 1, 2);
  stranger.token = "theirs";
  EXPECT_THAT(error_of([&] { open_store(stranger); }), AllOf(HasSubstr("LS3124"), HasSubstr("another job token")));
  EXPECT_THAT(error_of([&] { open_store(options_of(listener, 1, 3)); }),
              AllOf(HasSubstr("LS3005"), HasSubstr("told of 3 ranks, rank 0 of 2")));
  const auto store = open_store(options_of(listener, 1, 2));
  EXPECT_THAT(error_of([&] { open_store(options_of(listener, 1, 2)); }),
              AllOf(HasSubstr("LS3005"), HasSubstr("joined")));
  done = true;
  done.notify_all();
}

TEST(Rendezvous, ListensOnTheNamedInterfaceAlone) {
  RendezvousOptions options;
  options.place = TcpPlace{.host = "0.0.0.0", .port = 1};
  options.serve = true;
  options.token = "x";
  EXPECT_THAT(error_of([&] { open_store(options); }), AllOf(HasSubstr("LS3125"), HasSubstr("every interface")));
  options.place.host = "203.0.113.1";  // reserved for documentation: nobody's
  EXPECT_THAT(error_of([&] { open_store(options); }), AllOf(HasSubstr("LS3125"), HasSubstr("no address of the host")));
  options.token = "";
  EXPECT_THAT(error_of([&] { open_store(options); }), AllOf(HasSubstr("LS3124"), HasSubstr("without a job token")));
}

TEST(TcpPlace, KnowsWhoCanReachIt) {
  EXPECT_TRUE(is_loopback({"127.0.0.1", 1}));
  EXPECT_TRUE(is_loopback({"::1", 1}));
  EXPECT_FALSE(is_loopback({"203.0.113.1", 1}));
  EXPECT_EQ(own_address_towards({"127.0.0.1", 1}), "127.0.0.1");
  EXPECT_EQ((TcpPlace{"fe80::1", 7}).text(), "[fe80::1]:7");
  EXPECT_THAT(error_of([] { listen_at({"no-such-host.invalid", 1}); }), HasSubstr("LS3125"));
}

TEST(Rendezvous, APortInUseIsRefused) {
  const Listener listener;
  RendezvousOptions options = options_of(listener, 0, 1);
  options.listening_fd = -1;
  EXPECT_THAT(error_of([&] { open_store(options); }), AllOf(HasSubstr("LS3125"), HasSubstr("in use")));
  close(listener.descriptor);
}

}  // namespace
}  // namespace lockstep::comm
