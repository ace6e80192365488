// Refusals where memory is short, and the changes they name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/plan/room.h"
#include "lockstep/plan/test_layouts.h"
#include "lockstep/program/passes/make_layout.h"
#include "lockstep/program/verify/verify.h"

namespace lockstep::plan {

using program::Layout;
using program::MemoryCategory;
using program::Program;
using program::build_program;
using program::make_layout;
using program::predict_memory;

namespace {

using ::testing::HasSubstr;

int64_t peak_of(const config::RunConfig& config, int ranks) {
  const Layout layout = layout_of(config, ranks);
  return predict_memory(layout, build_program(layout), 0).peak;
}

std::vector<WayOut> all_ways(const config::RunConfig& config, const Layout& layout, int rank) {
  return ways_out(config, layout, {.rank = rank, .room = limit_of(config), .most = 100});
}

std::vector<std::string> changes(const std::vector<WayOut>& ways) {
  std::vector<std::string> all;
  for (const WayOut& way : ways) all.push_back(way.change);
  return all;
}

TEST(WaysOut, AreWhatTheChangedConfigurationWouldNeed) {
  config::RunConfig config = small_run();
  const int64_t peak = peak_of(config, 2);
  const std::vector<WayOut> ways = all_ways(config, layout_of(config, 2), 0);
  const auto find = [&](const std::string& change) {
    for (const WayOut& way : ways)
      if (way.change == change) return way;
    ADD_FAILURE() << "no " << change << " in " << join(changes(ways), "; ");
    return WayOut{};
  };
  config.train.micro_batch = 1;
  EXPECT_EQ(find("train.micro_batch = 1").peak, peak_of(config, 2));
  config = small_run();
  config.parallel.zero = 3;
  EXPECT_EQ(find("parallel.zero = 3").peak, peak_of(config, 2));
  EXPECT_EQ(find("parallel.zero = 3").saved, peak - peak_of(config, 2));
  config = small_run();
  config.parallel.tp = 2;
  EXPECT_EQ(find("parallel.tp = 2").peak, peak_of(config, 2));
  config = small_run();
  config.train.precision = config::Precision::kBf16;
  EXPECT_EQ(find("train.precision = \"bf16\" (other rounding)").peak, peak_of(config, 2));
  for (const WayOut& way : ways) EXPECT_GT(way.saved, 0) << way.change;
}

int64_t most_of(const config::RunConfig& config, int ranks) {
  const Layout layout = layout_of(config, ranks);
  const Program program = build_program(layout);
  int64_t most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, predict_memory(layout, program, rank).peak);
  return most;
}

const WayOut* find_way(const std::vector<WayOut>& ways, const std::string& change) {
  const auto found = std::find_if(ways.begin(), ways.end(), [&](const WayOut& way) { return way.change == change; });
  return found == ways.end() ? nullptr : &*found;
}

TEST(WaysOut, MoreStagesAreJudgedByTheOneThatNeedsMost) {
  config::RunConfig config = small_run();
  config.model.layers = 6;
  config.train.global_batch = 16;
  config::RunConfig cut = config;
  cut.parallel.pp = 2;
  const int64_t most = most_of(cut, 4);
  ASSERT_LT(most, peak_of(config, 4));
  for (const int64_t limit : {most, most - 1}) {
    config.memory.device_limit.count = limit;
    const std::vector<WayOut> ways = all_ways(config, layout_of(config, 4), 0);
    const WayOut* way = find_way(ways, "parallel.pp = 2");
    ASSERT_NE(way, nullptr);
    EXPECT_EQ(way->peak, most);
    EXPECT_EQ(way->saved, peak_of(config, 4) - most);
    EXPECT_EQ(way->fits, limit == most);
    EXPECT_NE(find_way(ways, "parallel.pp = 4"), nullptr);
    EXPECT_EQ(find_way(ways, "parallel.pp = 8"), nullptr);
  }
  // From 2 stages to 4, with the keys that were set.
  config.memory.device_limit.count = 0;
  config.parallel = {};
  config.parallel.pp = 2;
  config.parallel.dp = 2;
  config.parallel.layers_per_stage.list = {3, 3};
  const std::vector<WayOut> ways = all_ways(config, layout_of(config, 4), 0);
  cut = config;
  cut.parallel.pp = 4;
  cut.parallel.dp = 1;
  cut.parallel.layers_per_stage.list.clear();
  const WayOut* way = find_way(ways, "parallel.pp = 4 and parallel.dp = 1 and parallel.layers_per_stage = []");
  ASSERT_NE(way, nullptr) << join(changes(ways), "; ");
  EXPECT_EQ(way->peak, most_of(cut, 4));
  // Of a change that leaves the stages: that of the rank, but it fits only where it fits every stage.
  cut = config;
  cut.train.micro_batch = 1;
  const Layout layout = layout_of(cut, 4);
  const Program program = build_program(layout);
  config.memory.device_limit.count = most_of(cut, 4) - 1;
  for (const int rank : {0, 2}) {
    const std::vector<WayOut> same = all_ways(config, layout_of(config, 4), rank);
    const WayOut* smaller = find_way(same, "train.micro_batch = 1");
    ASSERT_NE(smaller, nullptr);
    EXPECT_EQ(smaller->peak, predict_memory(layout, program, rank).peak);
    EXPECT_FALSE(smaller->fits);
  }
}

TEST(WaysOut, DegreesThatWereSetFollow) {
  config::RunConfig config = small_run();
  config.model.layers = 6;
  config.parallel.zero = 1;
  config.parallel.dp_shard = 4;
  config.parallel.dp_replicate = 2;
  config.train.micro_batch = 1;
  const std::vector<std::string> named = changes(all_ways(config, layout_of(config, 8), 0));
  EXPECT_THAT(named, ::testing::Contains("parallel.pp = 2 and parallel.dp_replicate = 1"));
  EXPECT_THAT(named, ::testing::Contains("parallel.pp = 4 and parallel.dp_shard = 2 and parallel.dp_replicate = 1"));
}

TEST(WaysOut, ThoseThatFitComeFirstTheFastestOfThemAhead) {
  config::RunConfig config = small_run();
  config.memory.device_limit.count = peak_of(config, 2) - 1;
  const std::vector<WayOut> ways = all_ways(config, layout_of(config, 2), 0);
  for (size_t i = 1; i < ways.size(); ++i) {
    EXPECT_GE(ways[i - 1].fits, ways[i].fits);
    if (ways[i].fits && ways[i - 1].same_numbers() == ways[i].same_numbers()) {
      EXPECT_LE(ways[i - 1].slower, ways[i].slower) << ways[i].change;
    }
  }
  EXPECT_EQ(ways_out(config, layout_of(config, 2), {.room = limit_of(config)}).size(), 3u);
  config.memory.device_limit.count = 1;  // nothing is enough: what saves most
  const std::vector<WayOut> none = ways_out(config, layout_of(config, 2), {.room = limit_of(config)});
  for (const WayOut& way : none) EXPECT_FALSE(way.fits) << way.change;
  for (size_t i = 1; i < none.size(); ++i) EXPECT_GE(none[i - 1].saved, none[i].saved);
}

TEST(WaysOut, OnlyValidOnesAreNamed) {
  config::RunConfig config = small_run();
  config.train.global_batch = 20;
  const std::vector<std::string> named = changes(all_ways(config, layout_of(config, 5), 0));
  EXPECT_THAT(named, ::testing::Not(::testing::Contains(HasSubstr("parallel.tp"))));  // 5 ranks
  EXPECT_THAT(named, ::testing::Not(::testing::Contains(HasSubstr("activations"))));  // nothing recomputes in full
  config = small_run();
  config.parallel.data_parallel = config::DataParallel::kParameterServer;
  EXPECT_THAT(changes(all_ways(config, layout_of(config, 2), 0)),
              ::testing::Not(::testing::Contains(::testing::AnyOf(HasSubstr("zero"), HasSubstr("offload")))));
}

TEST(DeviceLimit, ThePredictedPeakOfTheRankThatNeedsMostDecides) {
  config::RunConfig config = small_run();
  config.parallel.data_parallel = config::DataParallel::kParameterServer;
  const int64_t server = peak_of(config, 2);
  config.memory.device_limit.count = server;
  EXPECT_NO_THROW(check_room(config, layout_of(config, 2), limit_of(config)));
  config.memory.device_limit.count = server - 1;
  try {
    check_room(config, layout_of(config, 2), limit_of(config));
    FAIL() << "no error";
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kOutOfMemory);
    EXPECT_EQ(error.message().code, "LS4003");
    EXPECT_THAT(error.message().what, HasSubstr("rank 0 (dp_replicate0) would need "));
    for (const char* word : {"parameters", "gradients", "optimizer", "activations", "buffers", "peak", "cheapest ways out"})
      EXPECT_THAT(error.message().what, HasSubstr(word));
  }
}

Need need_in(const config::RunConfig& config, const Layout& layout, const Room& room) {
  const Program program = build_program(layout);
  program::RankMemory bytes(layout, program);
  return need_of(config, layout, bytes, room);
}

Room host(int64_t bytes, int ranks) {
  return {.kind = Room::Kind::kHost, .bytes = bytes, .source = "a test", .first_rank = 0, .ranks = ranks, .fewer_ranks = true};
}

// What the ranks of the host take, by hand: peaks, what is offloaded, and a copy of the states from which is saved.
TEST(HostRoom, IsTakenByAllRanksTogether) {
  config::RunConfig config = small_run();
  const int64_t parameters = layout_of(config, 1).flat_layout(0).numel;
  const auto needed = [&](const Layout& layout, Room room) { return need_in(config, layout, room).total; };
  EXPECT_EQ(needed(layout_of(config, 2), host(0, 2)), 2 * peak_of(config, 2) + 2 * (12 * parameters / 2));
  Room second = host(0, 1);
  second.first_rank = 1;  // of two hosts
  EXPECT_EQ(needed(layout_of(config, 2), second), peak_of(config, 2) + 12 * parameters / 2);
  config.checkpoint.asynchronous = false;
  EXPECT_EQ(needed(layout_of(config, 2), host(0, 2)), 2 * peak_of(config, 2));
  Room verified = host(0, 2);
  verified.twin = true;  // on rank 0
  EXPECT_EQ(needed(layout_of(config, 2), verified), 2 * peak_of(config, 2) + peak_of(config, 1));
  config.memory.offload.list = {config::Offloaded::kOptimizer};
  const Layout layout = layout_of(config, 2);
  const int64_t offloaded = predict_memory(layout, build_program(layout), 0)[MemoryCategory::kHost];
  EXPECT_EQ(offloaded, 16 * parameters);
  EXPECT_EQ(needed(layout, host(0, 2)), 2 * peak_of(config, 2) + 2 * offloaded);
  config.train.device = config::Device::kCuda;
  EXPECT_EQ(needed(layout, host(0, 2)), 2 * offloaded);
  Room gpu = host(0, 2);
  gpu.kind = Room::Kind::kDevice;
  EXPECT_EQ(needed(layout, gpu), 2 * peak_of(config, 2));
}

TEST(HostRoom, RefusesWhatDoesNotFitAndNothingElse) {
  const config::RunConfig config = small_run();
  const Layout layout = layout_of(config, 2);
  const int64_t needed = need_in(config, layout, host(0, 2)).total;
  EXPECT_NO_THROW(check_room(config, layout, host(needed, 2)));
  EXPECT_NO_THROW(check_room(config, layout, {}));
  EXPECT_THAT(changes(ways_out(config, layout, {.room = host(needed - 1, 2), .most = 100})), ::testing::Contains("checkpoint.asynchronous = false"));
  try {
    check_room(config, layout, host(needed - 1, 2));
    FAIL() << "no error";
  } catch (const OutOfMemoryError& error) {
    EXPECT_EQ(error.message().code, "LS4003");
    for (const char* word : {"2 ranks of this host would together need ", "copies of states to save ", " are left on this host (a test)",
                             "nothing was started", "rank 0", "peak", "cheapest ways out", "parallel.zero = 1"})
      EXPECT_THAT(error.message().what, HasSubstr(word));
    EXPECT_THAT(error.message().way_out, HasSubstr("memory.device_limit"));
  }
}

// The machine that is meant: what a CPU offloads stays on it, and a GPU's ranks are as many as there are GPUs.
TEST(WaysOut, FitTheMachine) {
  config::RunConfig config = small_run();
  const auto of = [&](const Room& room) {
    return changes(ways_out(config, layout_of(config, 2), {.rank = 0, .room = room, .most = 100}));
  };
  using ::testing::Contains;
  using ::testing::Not;
  EXPECT_THAT(of(limit_of(config)), Not(Contains(HasSubstr("offload"))));
  EXPECT_THAT(of(limit_of(config)), Not(Contains(HasSubstr("-n"))));
  EXPECT_THAT(of(host(0, 2)), Contains("-n 1"));
  Room fixed = host(0, 2);
  fixed.fewer_ranks = false;  // another launcher has started them
  EXPECT_THAT(of(fixed), Not(Contains(HasSubstr("-n"))));
  config.parallel.dp = 2;
  EXPECT_THAT(of(host(0, 2)), Contains("-n 1 and parallel.dp = 1"));
  config.memory.offload.list = {config::Offloaded::kOptimizer};
  EXPECT_THAT(of(host(0, 2)), Contains("memory.offload = []"));
  config.memory.offload.list = {};
  config.train.device = config::Device::kCuda;
  Room gpu = host(0, 1);
  gpu.kind = Room::Kind::kDevice;
  EXPECT_THAT(of(gpu), Contains("memory.offload = \"optimizer\""));
  EXPECT_THAT(of(gpu), Not(Contains(HasSubstr("-n"))));
}

// Every way out, given as flags, is a configuration that resolves and needs what was said.
void expect_kept(const std::vector<config::Override>& flags, int ranks, const Room& room, bool limited) {
  const config::LoadedConfig before = config::load_config({}, flags);
  const Layout layout = make_layout(before, arch::resolve_model(before.config.model), ranks);
  const Need now = need_in(before.config, layout, room);
  const auto ways = ways_out(before.config, layout, {.rank = now.worst, .room = room, .most = 100});
  for (const WayOut& way : ways) {
    std::vector<config::Override> changed = flags;
    for (const config::Override& set : way.set) {
      std::erase_if(changed, [&](const config::Override& flag) { return flag.key == set.key; });
      changed.push_back(set);
    }
    const config::LoadedConfig loaded = config::load_config({}, changed);
    const Layout other = make_layout(loaded, arch::resolve_model(loaded.config.model), way.ranks > 0 ? way.ranks : ranks);
    const Program program = build_program(other);
    const Need need = need_in(loaded.config, other, room);
    const bool same_rank = limited && other.pipeline.ranks == layout.pipeline.ranks;
    EXPECT_EQ(way.peak, same_rank ? predict_memory(other, program, now.worst).peak : need.total) << way.change;
    EXPECT_EQ(way.fits, need.total <= room.bytes) << way.change;
    EXPECT_EQ(way.saved, now.total - way.peak) << way.change;
    EXPECT_GT(way.saved, 0) << way.change;
    for (const config::Override& set : way.set) EXPECT_THAT(way.change, HasSubstr(set.key + " = "));
  }
  EXPECT_FALSE(ways.empty());
}

TEST(WaysOut, EveryOneAppliedGivesWhatItSays) {
  const std::vector<config::Override> base = {{"model.preset", "gpt2-test"},  {"model.layers", "6"},     {"train.global_batch", "16"},
                                              {"train.micro_batch", "4"},     {"train.seq_len", "256"},  {"model.max_seq_len", "256"}};
  const std::vector<std::vector<config::Override>> variants = {
      {},
      {{"train.device", "cuda"}},
      {{"parallel.dp", "4"}},
      {{"parallel.pp", "2"}, {"parallel.layers_per_stage", "[3,3]"}, {"train.micro_batch", "2"}},
      {{"parallel.zero", "1"}, {"parallel.dp_shard", "2"}, {"parallel.dp_replicate", "2"}},
      {{"parallel.fsdp", "true"}, {"memory.recompute", "full"}, {"memory.offload", "optimizer"}},
      {{"parallel.data_parallel", "parameter_server"}, {"train.precision", "bf16"}},
      {{"parallel.tp", "2"}, {"memory.recompute", "[full,none,none,none,none,none]"}},
      {{"train.device", "cuda"}, {"memory.recompute", "full"}, {"memory.offload", "optimizer"}, {"memory.host_limit", "1GiB"}}};
  for (const auto& variant : variants) {
    std::vector<config::Override> flags = base;
    for (const config::Override& set : variant) {
      std::erase_if(flags, [&](const config::Override& flag) { return flag.key == set.key; });
      flags.push_back(set);
    }
    SCOPED_TRACE(::testing::PrintToString(variant.empty() ? "base" : variant[0].key + "=" + variant[0].value));
    constexpr int64_t kSome = int64_t{8} << 20;  // enough for some of them
    expect_kept(flags, 4, {.kind = Room::Kind::kLimit, .bytes = kSome}, true);
    expect_kept(flags, 4, host(2 * kSome, 4), false);
    expect_kept(flags, 4, {.kind = Room::Kind::kDevice, .bytes = 1, .first_rank = 1, .ranks = 1}, false);
  }
}

// Where no change is enough, several together are named ahead of the others.
TEST(WaysOut, SeveralTogetherWhereNoneFitsAlone) {
  config::RunConfig config = small_run();
  config.train.global_batch = 64;
  config.train.micro_batch = 16;
  config.model.layers = 6;
  int64_t least = INT64_MAX;
  for (const WayOut& way : all_ways(config, layout_of(config, 4), 0)) least = std::min(least, way.peak);
  config.memory.device_limit.count = least - 1;
  const std::vector<WayOut> ways = all_ways(config, layout_of(config, 4), 0);
  EXPECT_TRUE(ways[0].fits) << ways[0].change;
  EXPECT_THAT(ways[0].change, HasSubstr(" and "));
  for (size_t i = 1; i < ways.size(); ++i) EXPECT_FALSE(ways[i].fits) << ways[i].change;
}

// What is not planned because it cannot be named would not have been named.
TEST(WaysOut, TheFirstOfThemAreThoseOfAll) {
  config::RunConfig config = small_run();
  config.model.layers = 6;
  config.train.global_batch = 64;
  config.train.micro_batch = 16;
  for (const int pp : {1, 2})
    for (const int64_t mebibytes : {0, 1, 2, 4, 8, 16, 64}) {
      config.parallel.pp = pp;
      const Layout layout = layout_of(config, 4);
      for (Room room : {Room{.kind = Room::Kind::kLimit}, Room{.kind = Room::Kind::kUnbounded}, host(0, 4), host(0, 1)}) {
        room.bytes = mebibytes << 20;
        SCOPED_TRACE(::testing::PrintToString(std::tuple(pp, mebibytes, static_cast<int>(room.kind), room.ranks)));
        const std::vector<WayOut> all = ways_out(config, layout, {.room = room, .most = 100});
        for (const size_t most : {size_t{1}, size_t{3}}) {
          const std::vector<WayOut> first = ways_out(config, layout, {.room = room, .most = most});
          ASSERT_EQ(first.size(), std::min(most, all.size()));
          for (size_t i = 0; i < first.size(); ++i) {
            EXPECT_EQ(first[i].change, all[i].change);
            EXPECT_EQ(first[i].peak, all[i].peak);
            EXPECT_EQ(first[i].saved, all[i].saved);
            EXPECT_EQ(first[i].slower, all[i].slower);
            EXPECT_EQ(first[i].fits, all[i].fits);
          }
        }
      }
    }
}

// With a million ranks of one host fewer of them save most: a copy of the model has 64, whose step is then very long.
TEST(WaysOut, OfAMillionRanks) {
  config::RunConfig config;
  config.model.preset = "llama3-8b";
  config.parallel.tp = config.parallel.pp = 8;
  config.parallel.zero = 1;
  config.train.micro_batch = 8;
  config.train.global_batch = 8 * 16'384;
  config.train.seq_len = 256;
  constexpr int kRanks = 1 << 20;
  const std::vector<WayOut> ways = ways_out(config, layout_of(config, kRanks), {.room = host(int64_t{16} << 30, kRanks)});
  EXPECT_THAT(changes(ways), ::testing::ElementsAre("-n 64", "-n 128", "-n 256"));
}

}  // namespace
}  // namespace lockstep::plan
