// The closed form of memory beside the bytes that the program predicts by walking a step.
#include "lockstep/plan/search/quick_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/plan/search/quick_estimate.h"
#include "lockstep/plan/search/test_search.h"
#include "lockstep/plan/time/stage_memory.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;
using test_search::Chance;
using test_search::TestJob;

struct Walked {
  double device = 0, host = 0;
};

Walked walked(const TestJob& job, const Candidate& candidate, const EstimateOptions& options) {
  const program::Layout layout = program::make_layout(with_candidate(job.config, candidate), job.model, static_cast<int>(ranks_of(candidate)));
  const StageMemory memory = stage_memory(layout, program::judged_steps(layout), job.cluster, job.stack, options);
  Walked bytes{.host = memory.host / job.cluster.devices_per_node};
  for (const StageEstimate& stage : memory.stages) bytes.device = std::max(bytes.device, stage.peak);
  return bytes;
}

// With ZeRO 3 the form knows no more than which stretch is next: of what is gathered ahead it may have one layer too many or too few, and
// naive and gpipe, which no search proposes, gather otherwise.
double bound_of(const Candidate& candidate) {
  if (candidate.zero < 3) return 0.01;
  return candidate.schedule == ScheduleKind::kNaive || candidate.schedule == ScheduleKind::kGPipe ? 0.15 : 0.05;
}

struct MemoryCase {
  const char* preset = "";
  int64_t layers = 0, batch = 96, length = 1536;
  int count = 120;
  double imbalance = 1;
  std::function<void(config::RunConfig&)> change = [](config::RunConfig&) {};
};

// Of legal candidates by chance; the largest error.
double largest_error(const MemoryCase& of, unsigned seed) {
  const TestJob job = test_search::test_job({.preset = of.preset, .cluster = "64 nodes of 8xh100", .batch = of.batch, .length = of.length,
                                                   .layers = of.layers, .change = of.change});
  const EstimateOptions options{.imbalance = of.imbalance, .traffic = false};
  QuickTier tier(job.job(), options, {});
  Chance chance(seed);
  double worst = 0;
  for (int seen = 0; seen < of.count;) {
    const Candidate candidate = chance.candidate();
    if (ranks_of(candidate) > job.cluster.devices() || tier.legality().of(candidate)) continue;
    ++seen;
    const QuickMemory quick = tier.memory(candidate);
    const Walked exact = walked(job, candidate, options);
    const double error = quick.device / exact.device - 1;
    worst = std::max(worst, std::abs(error));
    EXPECT_LE(std::abs(error), bound_of(candidate)) << of.preset << ": " << describe(candidate) << ", microbatches " << tier.legality().microbatches(candidate)
                                     << ": quick " << quick.device << ", walked " << exact.device << " = " << 100 * error << " % on stage " << quick.rank;
    EXPECT_NEAR(quick.host, exact.host, 0.001 * exact.host) << of.preset << ": " << describe(candidate);
  }
  return worst;
}

TEST(QuickMemory, IsThatOfTheWalkForDenseModels) {
  largest_error({.preset = "llama3-8b", .layers = 22, .count = 200}, 11);
  largest_error({.preset = "gpt2-1.5b", .layers = 14, .length = 1024}, 12);
}

TEST(QuickMemory, IsThatOfTheWalkForModelsWithExperts) {
  largest_error({.preset = "qwen3-30b-a3b", .layers = 8, .count = 40, .imbalance = 1.2}, 13);
  largest_error({.preset = "mixtral-8x7b", .layers = 10, .count = 60}, 14);
  largest_error({.preset = "deepseek-v3", .layers = 6, .count = 20}, 15);
}

TEST(QuickMemory, IsThatOfTheWalkForStateSpacesAndWindows) {
  largest_error({.preset = "mamba2-130m", .layers = 14}, 16);
  largest_error({.preset = "llama3-8b", .layers = 12, .change = [](config::RunConfig& config) { config.model.mixers = "WWWA", config.model.window = 512; }}, 17);
}

}  // namespace
}  // namespace lockstep::plan
