// Where memory is short and moe.imbalance_limit is not set: the largest round one that fits is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "lockstep/base/text.h"
#include "lockstep/plan/expert_limits.h"
#include "lockstep/plan/room.h"
#include "lockstep/plan/usual_machine.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {

using program::Layout;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
using Flags = std::vector<config::Override>;

Flags with(Flags flags, const Flags& more) {
  for (const config::Override& set : more) {
    std::erase_if(flags, [&](const config::Override& flag) { return flag.key == set.key; });
    flags.push_back(set);
  }
  return flags;
}

// 8 experts, 2 of a token: with ep 4 the worst case is 4 times balanced routing.
Flags shared_experts(const Flags& more = {}) {
  return with({{"model.preset", "mixtral-test"}, {"train.seq_len", "64"}, {"train.global_batch", "16"}, {"train.micro_batch", "2"}, {"parallel.ep", "4"}}, more);
}

struct Planned {
  explicit Planned(const Flags& flags)
      : loaded(config::load_config({}, flags)),
        layout(program::make_layout(loaded, arch::resolve_model(loaded.config.model), kRanks)) {}

  Need need(const Room& room) const {
    const program::Program program = build_program(layout);
    program::RankMemory bytes(layout, program);
    return need_of(loaded.config, layout, bytes, room);
  }
  double seconds() const { return usual_seconds(layout, loaded.config.train.device); }
  std::vector<WayOut> ways(const Room& room) const { return ways_out(loaded.config, layout, {.rank = need(room).worst, .room = room, .most = 100}); }

  config::LoadedConfig loaded;
  Layout layout;
};

Room limit(int64_t bytes) { return {.kind = Room::Kind::kLimit, .bytes = bytes, .source = "a test"}; }
Room host(int64_t bytes) { return {.kind = Room::Kind::kHost, .bytes = bytes, .source = "a test", .ranks = kRanks}; }

// Those that set the limit and nothing else.
std::vector<WayOut> limits_of(const std::vector<WayOut>& ways) {
  std::vector<WayOut> found;
  std::ranges::copy_if(ways, std::back_inserter(found), [](const WayOut& way) { return way.limits_experts && way.set.size() == 1; });
  return found;
}

TEST(RoundLimits, AreBelowTheWorstCase) {
  EXPECT_THAT(round_limits(Planned(shared_experts()).layout), ElementsAre(1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5));
  EXPECT_THAT(round_limits(Planned(shared_experts({{"parallel.ep", "2"}})).layout), ElementsAre(1, 1.25, 1.5, 1.75));
  EXPECT_THAT(round_limits(Planned(shared_experts({{"moe.imbalance_limit", "1"}})).layout), ElementsAre(1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5));
  EXPECT_THAT(round_limits(Planned(shared_experts({{"model.router", "expert_choice"}, {"moe.balance", "none"}})).layout), ElementsAre(1));
}

TEST(WaysOutOfExperts, TheLargestLimitThatFits) {
  const Planned now(shared_experts());
  for (const bool whole_host : {false, true}) {
    const auto room = [&](int64_t bytes) { return whole_host ? host(bytes) : limit(bytes); };
    const int64_t worst = now.need(room(0)).total;
    for (const double largest : whole_host ? std::vector<double>{1.5} : round_limits(now.layout)) {
      const Planned limited(shared_experts({{"moe.imbalance_limit", number_text(largest)}}));
      const int64_t needed = limited.need(room(0)).total;
      const std::vector<WayOut> ways = limits_of(now.ways(room(needed)));
      ASSERT_EQ(ways.size(), 1u);
      EXPECT_EQ(ways[0].change, cat("moe.imbalance_limit = ", number_text(largest)));
      EXPECT_TRUE(ways[0].fits);
      EXPECT_TRUE(ways[0].same_numbers());
      EXPECT_EQ(ways[0].peak, needed);
      EXPECT_EQ(ways[0].saved, worst - needed);
      EXPECT_NEAR(ways[0].slower, limited.seconds() / now.seconds() - 1, 1e-12);
      EXPECT_NO_THROW(check_room(limited.loaded.config, limited.layout, room(needed)));
      EXPECT_THAT(ways_text(ways, room(needed)), HasSubstr("of a step without further rounds"));
    }
  }
}

TEST(WaysOutOfExperts, TheLeastWhereNoneFits) {
  const Planned now(shared_experts()), least(shared_experts({{"moe.imbalance_limit", "1"}}));
  const int64_t needed = least.need(limit(0)).total;
  const std::vector<WayOut> ways = limits_of(now.ways(limit(needed - 1)));
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].change, "moe.imbalance_limit = 1");
  EXPECT_EQ(ways[0].peak, needed);
  EXPECT_FALSE(ways[0].fits);
}

// A room of which nobody says how large it is.
TEST(WaysOutOfExperts, AtMostTwiceInARoomOfNoSize) {
  const std::vector<WayOut> ways = limits_of(Planned(shared_experts()).ways({}));
  ASSERT_EQ(ways.size(), 1u);
  EXPECT_EQ(ways[0].change, "moe.imbalance_limit = 2");
}

// Every way out is accepted, fits where it says so and needs what it says; a limit among several changes is the largest too.
TEST(WaysOutOfExperts, TogetherWithOthers) {
  const Flags flags = shared_experts({{"parallel.zero", "3"}, {"train.micro_batch", "1"}, {"train.global_batch", "4"}, {"memory.recompute", "selective"}});
  const Planned now(flags);
  int64_t least = INT64_MAX;
  for (const WayOut& way : now.ways({})) least = std::min(least, way.peak);
  least = std::min(least, Planned(with(flags, {{"moe.imbalance_limit", "1"}})).need({}).total);
  const std::vector<WayOut> ways = now.ways(limit(least - 1));
  ASSERT_FALSE(ways.empty());
  EXPECT_TRUE(ways[0].fits) << ways[0].change;
  EXPECT_GT(ways[0].set.size(), 1u);
  for (const WayOut& way : ways) {
    const Planned changed(with(flags, way.set));
    EXPECT_EQ(changed.need(limit(0)).total <= least - 1, way.fits) << way.change;
    if (!way.fits || !way.limits_experts) continue;
    const std::vector<double> limits = round_limits(changed.layout);
    const auto next = std::ranges::upper_bound(limits, changed.layout.moe.imbalance_limit.value());
    if (next == limits.end()) continue;
    const Planned more(with(flags, with(way.set, {{"moe.imbalance_limit", number_text(*next)}})));
    EXPECT_GT(more.need(limit(0)).total, least - 1) << way.change << ", but " << *next << " fits too";
  }
}

TEST(WaysOutOfExperts, NoLimitWhereItIsRefusedOrSet) {
  const Flags stages = {{"parallel.pp", "2"}, {"parallel.ep", "2"}, {"train.micro_batch", "1"}, {"parallel.schedule", "zb-h1"}};
  for (const Flags& more : std::vector<Flags>{{{"parallel.ep", "1"}},
                                              {{"moe.imbalance_limit", "2"}},
                                              {{"moe.static_buffers", "true"}},
                                              {{"parallel.overlap_experts", "true"}},
                                              with(stages, {{"parallel.zero", "3"}})})
    for (const WayOut& way : Planned(shared_experts(more)).ways(limit(1))) {
      EXPECT_FALSE(way.limits_experts) << more[0].key << ": " << way.change;
      EXPECT_THAT(way.change, ::testing::Not(HasSubstr("imbalance_limit")));
    }
  EXPECT_EQ(limits_of(Planned(shared_experts(stages)).ways(limit(1))).size(), 1u);
}

}  // namespace
}  // namespace lockstep::plan
