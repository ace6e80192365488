// The closed form of a step's seconds beside the walk of estimate_step: how far apart they are on layouts that a search may choose, and
// whether the first tier keeps what the walk finds best.
#include "lockstep/plan/search/quick_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/plan/search/first_tier.h"
#include "lockstep/plan/search/test_search.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using test_search::TestJob;

double walked_seconds(const TestJob& job, const Candidate& candidate) {
  const program::Layout layout = program::make_layout(with_candidate(job.config, candidate), job.model, static_cast<int>(ranks_of(candidate)));
  return estimate_step(layout, job.cluster, job.stack, {.memory = false, .traffic = false}).seconds;
}

// The fastest that fit, two of each block, none `slower` times slower than the fastest.
std::vector<Ranked> layouts_that_matter(const TestJob& job, QuickTier& tier, const CandidateSpace& space, double slower) {
  const FirstTierOptions options{.devices = job.cluster.devices(), .memory = job.cluster.device.memory,
                                 .host = job.cluster.host_memory / job.cluster.devices_per_node, .keep = 4000};
  std::vector<Ranked> ranked = first_tier(tier, space, options).best;
  std::erase_if(ranked, [&](const Ranked& one) { return one.quick.seconds > slower * ranked.front().quick.seconds; });
  return ranked;
}

struct TimeCase {
  test_search::JobOf job{};
  const char* fixed = "";
  int count = 25;
};

struct Errors {
  std::vector<double> all{};
  double at(double share) {
    std::ranges::sort(all);
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))];
  }
  std::string text() { return cat(all.size(), " layouts: median ", 100 * at(0.5), " %, P90 ", 100 * at(0.9), " %, worst ", 100 * at(1), " %"); }
};

void add_errors(const TimeCase& of, Errors& errors) {
  const TestJob job = test_search::test_job(of.job);
  const Fixed fixed = parse_fixed(of.fixed);
  const CandidateSpace space(job.config, job.model, job.cluster, fixed);
  std::map<Reject, int64_t> rejected;
  const Candidate legal = any_legal(Legality(job.config, job.model), space, job.cluster.devices(), rejected).value();
  QuickTier tier(job.job(), {.traffic = false}, legal);
  const std::vector<Ranked> ranked = layouts_that_matter(job, tier, space, 1.5);
  const double step = std::max(1.0, static_cast<double>(ranked.size()) / of.count);
  for (double i = 0; i < static_cast<double>(ranked.size()); i += step) {
    const Ranked& one = ranked[static_cast<size_t>(i)];
    const double walked = walked_seconds(job, one.candidate), error = one.quick.seconds / walked - 1;
    errors.all.push_back(std::abs(error));
  }
}

const TimeCase kDense[] = {
    {.job = {.preset = "llama3-8b", .cluster = "8xh100", .batch = 64, .length = 8192}},
    {.job = {.preset = "llama3-8b", .cluster = "16 nodes of 8xh100", .batch = 512, .length = 8192}},
    {.job = {.preset = "llama3-70b", .cluster = "64 nodes of 8xh100", .batch = 1024, .length = 8192}, .count = 20},
    {.job = {.preset = "gpt2-1.5b", .cluster = "4 nodes of 8xa100", .batch = 512, .length = 1024}, .count = 30},
};
const TimeCase kExperts[] = {
    {.job = {.preset = "qwen3-30b-a3b", .cluster = "8 nodes of 8xh100", .batch = 512, .length = 4096}, .count = 30},
    {.job = {.preset = "mixtral-8x7b", .cluster = "8 nodes of 8xh100", .batch = 256, .length = 4096}, .count = 30},
};

TEST(QuickTime, IsNearTheWalk) {
  Errors dense, experts;
  for (const TimeCase& of : kDense) add_errors(of, dense);
  for (const TimeCase& of : kExperts) add_errors(of, experts);
  RecordProperty("dense", dense.text());
  RecordProperty("experts", experts.text());
  EXPECT_LE(dense.at(0.5), 0.01) << dense.text();
  EXPECT_LE(dense.at(0.9), 0.03) << dense.text();
  EXPECT_LE(experts.at(0.5), 0.04) << experts.text();
  EXPECT_LE(experts.at(0.9), 0.10) << experts.text();
}

// Of all that fit and are not much slower by the closed form, the one that the walk finds fastest is among those that the first tier keeps.
TEST(QuickTime, TheFirstTierKeepsTheBestOfTheWalk) {
  const test_search::JobOf jobs[] = {{.preset = "llama3-8b", .cluster = "8xh100", .batch = 32, .length = 8192, .layers = 16},
                                     {.preset = "qwen3-30b-a3b", .cluster = "8xh100", .batch = 32, .length = 4096, .layers = 12}};
  for (const test_search::JobOf& of : jobs) {
    const TestJob job = test_search::test_job(of);
    const Fixed free;
    const CandidateSpace space(job.config, job.model, job.cluster, free);
    std::map<Reject, int64_t> rejected;
    QuickTier tier(job.job(), {.traffic = false}, any_legal(Legality(job.config, job.model), space, job.cluster.devices(), rejected).value());
    const std::vector<Ranked> ranked = layouts_that_matter(job, tier, space, 1.15);
    double best = walked_seconds(job, ranked[0].candidate);
    size_t place = 0;
    for (size_t i = 1; i < ranked.size(); ++i)
      if (const double seconds = walked_seconds(job, ranked[i].candidate); seconds < best) best = seconds, place = i;
    EXPECT_LT(place, 64U) << of.preset;
  }
}

}  // namespace
}  // namespace lockstep::plan
