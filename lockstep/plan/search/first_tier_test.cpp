// The pruned search beside one that estimates every candidate; its counts; its bounds.
#include "lockstep/plan/search/first_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "lockstep/plan/search/test_search.h"

namespace lockstep::plan {
namespace {

using config::Recompute;
using config::ScheduleKind;
using test_search::TestJob;

struct TierCase {
  test_search::JobOf job{};
  std::string fixed{};
  double memory = 0;  // bytes; 0: the device's
};

// A job with its space and tier.
struct Tiered {
  explicit Tiered(const TierCase& of)
      : job(test_search::test_job(of.job)), fixed(parse_fixed(of.fixed)), space(job.config, job.model, job.cluster, fixed), legality(job.config, job.model) {
    std::map<Reject, int64_t> rejected;
    legal = any_legal(legality, space, job.cluster.devices(), rejected).value();
    options = {.devices = job.cluster.devices(), .memory = of.memory > 0 ? of.memory : job.cluster.device.memory,
               .host = job.cluster.host_memory / job.cluster.devices_per_node, .keep = 64};
  }
  TestJob job;
  Fixed fixed;
  CandidateSpace space;
  Legality legality;
  Candidate legal;
  FirstTierOptions options;
};

void for_each_block(const Tiered& of, const std::function<void(const Candidate&)>& use) {
  for (Candidate base : of.space.meshes(of.options.devices))
    for (const int size : of.space.micro_batches(base))
      for (const auto& [ep, etp] : of.space.expert_grids(base)) {
        base.micro_batch = size;
        base.ep = ep;
        base.etp = etp;
        use(base);
      }
}

void for_each_of_block(const Tiered& of, const Candidate& block, const std::function<void(const Candidate&)>& use) {
  Candidate one = block;
  for (const CandidateSpace::Order& order : of.space.orders(block.pp))
    for (const Recompute recompute : of.space.recomputes())
      for (const auto& [zero, replicate] : of.space.sharings(block))
        for (const bool offload : of.space.offloads()) {
          one.schedule = order.schedule;
          one.virtual_stages = order.virtual_stages;
          one.recompute = recompute;
          one.zero = zero;
          one.dp_replicate = replicate;
          one.offload_optimizer = offload;
          use(one);
        }
}

struct Brute {
  std::vector<double> best{};  // seconds, ascending: of each block the two fastest that fit
  int64_t candidates = 0, legal = 0;
};

// Where a candidate fits on the device the same one with its optimizer on the host is not looked at.
Brute brute_force(const Tiered& of, QuickTier& tier) {
  Brute brute;
  for_each_block(of, [&](const Candidate& block) {
    std::vector<double> seconds;
    bool fits_here = false;
    for_each_of_block(of, block, [&](const Candidate& one) {
      ++brute.candidates;
      if (!one.offload_optimizer) fits_here = false;
      if (ranks_of(one) != of.options.devices || of.legality.of(one)) return;
      ++brute.legal;
      if (fits_here) return;
      const QuickMemory memory = tier.memory(one);
      const double room = of.options.memory, host = of.options.host;
      if ((room > 0 && tier.reserved(memory.device) > room) || (host > 0 && memory.host > host)) return;
      fits_here = true;
      seconds.push_back(tier.seconds(one));
    });
    std::ranges::sort(seconds);
    for (size_t i = 0; i < std::min(kOfBlock, seconds.size()); ++i) brute.best.push_back(seconds[i]);
  });
  std::ranges::sort(brute.best);
  if (brute.best.size() > of.options.keep) brute.best.resize(of.options.keep);
  return brute;
}

int64_t sum_of(const std::map<Reject, int64_t>& rejected) {
  return std::accumulate(rejected.begin(), rejected.end(), int64_t{0}, [](int64_t sum, const auto& one) { return sum + one.second; });
}

const TierCase kCases[] = {
    {.job = {.preset = "llama3-8b", .cluster = "8xh100", .batch = 32, .length = 4096, .layers = 12}},
    {.job = {.preset = "llama3-8b", .cluster = "8xh100", .batch = 24, .length = 4096, .layers = 12}, .memory = 20e9},
    {.job = {.preset = "qwen3-30b-a3b", .cluster = "8xh100", .batch = 16, .length = 2048, .layers = 6}},
    {.job = {.preset = "deepseek-v3", .cluster = "2 nodes of 4xh100", .batch = 16, .length = 1024, .layers = 5}, .fixed = "cp=1"},
    {.job = {.preset = "mamba2-130m", .cluster = "4xa100", .batch = 12, .length = 2048, .layers = 6}},
    {.job = {.preset = "hybrid-test", .cluster = "6xa100", .batch = 12, .length = 48}},
    {.job = {.preset = "llama3-8b", .cluster = "8xh100", .batch = 32, .length = 2048, .layers = 10}, .fixed = "pp=4,zero=1,recompute=selective"},
    {.job = {.preset = "gpt2-124m", .cluster = "1xa100", .batch = 8, .length = 1024}},
};

TEST(FirstTier, FindsWhatEstimatingAllOfThemFinds) {
  for (const TierCase& of : kCases) {
    const Tiered tiered(of);
    QuickTier tier(tiered.job.job(), {.traffic = false}, tiered.legal);
    const Brute brute = brute_force(tiered, tier);
    const FirstTier first = first_tier(tier, tiered.space, tiered.options);
    std::vector<double> found;
    for (const Ranked& one : first.best) found.push_back(one.quick.seconds);
    ASSERT_EQ(found.size(), brute.best.size()) << of.job.preset;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_DOUBLE_EQ(found[i], brute.best[i]) << of.job.preset << " " << i;
    EXPECT_EQ(first.candidates, brute.candidates) << of.job.preset;
    EXPECT_LE(first.estimated, brute.legal) << of.job.preset;
  }
}

TEST(FirstTier, CountsEveryCandidateOnce) {
  for (const TierCase& of : kCases)
    for (const size_t keep : {size_t{1}, size_t{5}, size_t{64}, size_t{100000}}) {
      Tiered tiered(of);
      tiered.options.keep = keep;
      QuickTier tier(tiered.job.job(), {.traffic = false}, tiered.legal);
      const FirstTier first = first_tier(tier, tiered.space, tiered.options);
      EXPECT_EQ(sum_of(first.rejected) + std::ssize(first.best), first.candidates) << of.job.preset << " " << keep;
      EXPECT_LE(first.best.size(), keep);
      for (const auto& [reason, count] : first.rejected) EXPECT_GT(count, 0) << reject_text(reason);
    }
}

TEST(FirstTier, KeepsLegalOnesThatFitAndMissesThatDoNot) {
  int misses = 0;
  for (const TierCase& of : kCases) {
    const Tiered tiered(of);
    QuickTier tier(tiered.job.job(), {.traffic = false}, tiered.legal);
    const FirstTier first = first_tier(tier, tiered.space, tiered.options);
    EXPECT_TRUE(std::ranges::is_sorted(first.best, {}, [](const Ranked& one) { return one.quick.seconds; }));
    for (const Ranked& one : first.best) {
      EXPECT_EQ(tiered.legality.of(one.candidate), std::nullopt) << describe(one.candidate);
      EXPECT_LE(one.quick.memory, tiered.options.memory);
      EXPECT_EQ(ranks_of(one.candidate), tiered.options.devices);
    }
    for (const Ranked& one : first.misses) {
      EXPECT_EQ(tiered.legality.of(one.candidate), std::nullopt) << describe(one.candidate);
      EXPECT_GT(one.quick.memory, tiered.options.memory) << describe(one.candidate);
    }
    EXPECT_TRUE(std::ranges::is_sorted(first.misses, {}, [](const Ranked& one) { return one.quick.memory; }));
    misses += static_cast<int>(first.misses.size());
  }
  EXPECT_GT(misses, 0);
}

TEST(Bounds, NoCandidateIsFaster) {
  for (const TierCase& of : kCases) {
    const Tiered tiered(of);
    QuickTier tier(tiered.job.job(), {.traffic = false}, tiered.legal);
    for_each_block(tiered, [&](const Candidate& block) {
      bool any = false;
      double fastest = std::numeric_limits<double>::infinity();
      for_each_of_block(tiered, block, [&](const Candidate& one) {
        if (ranks_of(one) != tiered.options.devices || tiered.legality.of(one)) return;
        any = true;
        const double seconds = tier.seconds(one), of_order = tier.least_of_order(one), half = tier.seconds(one, seconds / 2);
        EXPECT_LE(tier.least_seconds(block) * least_fill(one, static_cast<double>(tier.legality().microbatches(one))), of_order * (1 + 1e-12)) << describe(one);
        EXPECT_LE(of_order, seconds * (1 + 1e-12)) << describe(one);
        EXPECT_TRUE(half >= seconds / 2 && half <= seconds) << describe(one) << ": no more than that it is slower";
        EXPECT_EQ(tier.seconds(one, seconds * (1 + 1e-9)), seconds) << describe(one);
        fastest = std::min(fastest, seconds);
      });
      if (!any) return;
      const double rough = tier.least_of_grids(block), least = tier.least_seconds(block);
      EXPECT_LE(rough, least * (1 + 1e-12)) << describe(block);
      EXPECT_LE(least, fastest * (1 + 1e-12)) << describe(block);
      EXPECT_GT(rough, 0) << describe(block);
    });
  }
}

TEST(Space, HasEveryMeshOnce) {
  const TestJob job = test_search::test_job({.preset = "llama-test", .cluster = "8xh100"});
  for (const int devices : {1, 2, 6, 12, 64}) {
    const Fixed free;
    const std::vector<Candidate> meshes = CandidateSpace(job.config, job.model, job.cluster, free).meshes(devices);
    size_t expected = 0;
    for (int tp = 1; tp <= devices; ++tp)
      for (int cp = 1; tp * cp <= devices; ++cp)
        for (int pp = 1; tp * cp * pp <= devices; ++pp) expected += devices % (tp * cp * pp) == 0;
    EXPECT_EQ(meshes.size(), expected) << devices;
    for (const Candidate& mesh : meshes) EXPECT_EQ(ranks_of(mesh), devices);
    for (size_t i = 0; i < meshes.size(); ++i)
      for (size_t j = 0; j < i; ++j) EXPECT_FALSE(meshes[i] == meshes[j]);
  }
}

// All data ranks, those of a node of 8 and those of a leaf of 4 nodes share states out.
TEST(Space, GroupsOfShardsFillADomainOrALeaf) {
  const TestJob job = test_search::test_job({.preset = "llama-test", .cluster = "16 nodes of 8xh100, 4 nodes a leaf"});
  const Fixed fixed = parse_fixed("zero=3");
  const CandidateSpace space(job.config, job.model, job.cluster, fixed);
  const auto replicates = [&](const Candidate& mesh) {
    std::vector<int> found;
    for (const auto& [zero, replicate] : space.sharings(mesh)) found.push_back(replicate);
    return found;
  };
  EXPECT_EQ(replicates({.dp = 128}), (std::vector{1, 16, 4}));
  EXPECT_EQ(replicates({.tp = 4, .dp = 32}), (std::vector{1, 16, 4}));
  EXPECT_EQ(replicates({.tp = 8, .dp = 16}), (std::vector{1, 4}));  // one of a node alone shares nothing out
  EXPECT_EQ(replicates({.tp = 8, .pp = 4, .dp = 4}), std::vector{1});
}

TEST(Space, FixedFieldsHaveTheirValueAlone) {
  const TestJob job = test_search::test_job({.preset = "mixtral-test", .cluster = "8xh100", .batch = 16});
  const Fixed fixed = parse_fixed("tp=4,ep=2,etp=1,micro_batch=2,zero=2,dp_replicate=1,recompute=full,offload_optimizer=true,"
                                  "schedule=interleaved,virtual_stages=3,sequence_parallel=false");
  const CandidateSpace space(job.config, job.model, job.cluster, fixed);
  for (const Candidate& mesh : space.meshes(8)) {
    EXPECT_EQ(mesh.tp, 4);
    EXPECT_FALSE(mesh.sequence_parallel);
    EXPECT_EQ(space.micro_batches(mesh), std::vector{2});
    EXPECT_EQ(space.expert_grids(mesh), (std::vector<std::pair<int, int>>{{2, 1}}));
    EXPECT_EQ(space.inner(mesh), 1);
    EXPECT_EQ(space.orders(mesh.pp)[0].schedule, ScheduleKind::kInterleaved);
    EXPECT_EQ(space.orders(mesh.pp)[0].virtual_stages, 3);
  }
  const Fixed groups = parse_fixed("dp_replicate=2,zero=1,tp=1,cp=1,pp=1");
  for (const auto& [zero, replicate] : CandidateSpace(job.config, job.model, job.cluster, groups).sharings({.dp = 8})) EXPECT_EQ(replicate, 2);
  // What divides nothing is there, too, and is rejected.
  const Fixed odd = parse_fixed("tp=3");
  std::map<Reject, int64_t> rejected;
  const CandidateSpace none(job.config, job.model, job.cluster, odd);
  EXPECT_EQ(any_legal(Legality(job.config, job.model), none, 8, rejected), std::nullopt);
  EXPECT_GT(rejected[Reject::kDomain], 0);
}

}  // namespace
}  // namespace lockstep::plan
