// Legality beside program::layout_problems, which has the last word: the same candidates are legal.
#include "lockstep/plan/search/legal.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "lockstep/config/suggestion.h"
#include "lockstep/plan/search/test_search.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::RunConfig;
using test_search::Chance;
using test_search::TestJob;

struct LegalCase {
  const char* preset = "";
  int64_t batch = 48, length = 48, layers = 0;
  std::function<void(RunConfig&)> change = [](RunConfig&) {};
};

// Both say the same of `count` candidates; how many each reason rejected.
std::map<Reject, int> agree(const LegalCase& of, int count, unsigned seed) {
  const TestJob job = test_search::test_job({.preset = of.preset, .cluster = "8xh100", .batch = of.batch, .length = of.length, .layers = of.layers,
                                         .change = of.change});
  const Legality legality(job.config, job.model);
  Chance chance(seed);
  std::map<Reject, int> rejected;
  int legal = 0;
  for (int i = 0; i < count; ++i) {
    const Candidate candidate = chance.candidate();
    const auto problems = program::layout_problems(with_candidate(job.config, candidate), job.model, static_cast<int>(ranks_of(candidate)));
    const std::optional<Reject> reason = legality.of(candidate);
    if (reason) ++rejected[*reason];
    legal += problems.empty();
    EXPECT_EQ(reason.has_value(), !problems.empty()) << of.preset << ": " << describe(candidate) << "; here "
                                                     << (reason ? reject_text(*reason) : "legal") << "; there "
                                                     << (problems.empty() ? "legal" : problems.front().what);
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GE(legal, count / 500) << of.preset;
  return rejected;
}

TEST(Legal, SaysWhatLayoutProblemsSay) {
  std::set<Reject> seen;
  unsigned seed = 1;
  for (const char* preset : {"gpt2-test", "llama-test", "mixtral-test", "deepseek-test", "mamba2-test", "hybrid-test", "hybrid-experts-test"})
    for (const auto& [reason, count] : agree({.preset = preset}, 800, seed++)) seen.insert(reason);
  for (const Reject reason : {Reject::kHeads, Reject::kKeyHeads, Reject::kLayers, Reject::kExperts, Reject::kBatch, Reject::kSequence})
    EXPECT_TRUE(seen.contains(reason)) << reject_text(reason);
}

TEST(Legal, SaysItOfModelsOfUsualSize) {
  for (const char* preset : {"llama3-8b", "qwen3-30b-a3b", "deepseek-v3"}) agree({.preset = preset, .batch = 192, .length = 4096}, 400, 77);
}

TEST(Legal, SaysItOfLongSequencesAndOddBatches) {
  agree({.preset = "llama-test", .batch = 35, .length = 45}, 500, 3);
  agree({.preset = "mixtral-test", .batch = 64, .length = 40}, 500, 4);
  agree({.preset = "hybrid-test", .batch = 60, .length = 64}, 500, 5);
}

TEST(Legal, SaysItBesideOtherKeys) {
  using config::ContextKind;
  const auto with = [](const char* preset, std::function<void(RunConfig&)> change) { return LegalCase{.preset = preset, .change = std::move(change)}; };
  const LegalCase cases[] = {
      with("llama-test", [](RunConfig& config) { config.parallel.data_parallel = config::DataParallel::kParameterServer; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.data_parallel = config::DataParallel::kParameterServer; }),
      with("llama-test", [](RunConfig& config) { config.parallel.context = ContextKind::kAllToAll; }),
      with("llama-test", [](RunConfig& config) { config.parallel.context = ContextKind::kAllGather; }),
      with("llama-test", [](RunConfig& config) { config.parallel.context = ContextKind::k2d, config.parallel.context_inner = 2; }),
      with("hybrid-test", [](RunConfig& config) { config.parallel.context = ContextKind::kAllToAll; }),
      with("mamba2-test", [](RunConfig& config) { config.parallel.context_split = config::ContextSplit::kContiguous; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.dispatcher = config::Dispatcher::kAllGather; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.dispatcher = config::Dispatcher::kHierarchical, config.parallel.ranks_per_node = 2; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.overlap_experts = true; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.overlap_experts = true, config.parallel.overlap = false; }),
      with("mixtral-test", [](RunConfig& config) { config.moe.imbalance_limit = 1.5; }),
      with("mixtral-test", [](RunConfig& config) { config.moe.static_buffers = true; }),
      with("llama-test", [](RunConfig& config) { config.parallel.post_validation = config::PostValidation::kOn; }),
      with("llama-test", [](RunConfig& config) {
        config.parallel.post_validation = config::PostValidation::kOn;
        config.optimizer.kind = config::OptimizerKind::kMuon;
      }),
      with("llama-test", [](RunConfig& config) {
        config.parallel.post_validation = config::PostValidation::kOn;
        config.train.nonfinite = config::NonFinite::kSkip;
      }),
      with("llama-test", [](RunConfig& config) { config.parallel.reduce_precision = config::Precision::kBf16; }),
      with("mixtral-test", [](RunConfig& config) { config.parallel.reduce_precision = config::Precision::kBf16; }),
      with("llama-test", [](RunConfig& config) { config.memory.host_limit = {int64_t{1} << 30}; }),
      with("mixtral-test", [](RunConfig& config) { config.optimizer.kind = config::OptimizerKind::kMuon; }),
  };
  unsigned seed = 100;
  for (const LegalCase& one : cases) {
    agree(one, 250, seed);
    if (HasFailure()) FAIL() << "case " << seed - 100;
    ++seed;
  }
}

// What a later search asks of a legal candidate.
TEST(Legal, KnowsWhichStepsUpdateAheadOfTheNorm) {
  for (const auto choice : test_search::all_of_enum<config::PostValidation>()) {
    TestJob job = test_search::test_job({.preset = "llama-test", .cluster = "8xh100", .batch = 48, .length = 48});
    job.config.parallel.post_validation = choice;
    const Legality legality(job.config, job.model);
    Chance chance(9);
    int late = 0;
    for (int i = 0; i < 2000; ++i) {
      const Candidate candidate = chance.candidate();
      if (legality.of(candidate)) continue;
      const RunConfig config = with_candidate(job.config, candidate);
      const program::Layout layout = program::make_layout(config, job.model, static_cast<int>(ranks_of(candidate)));
      EXPECT_EQ(legality.post_validates(candidate), layout.pipeline.post_validation) << describe(candidate);
      EXPECT_EQ(legality.microbatches(candidate), layout.num_microbatches()) << describe(candidate);
      late += layout.pipeline.post_validation;
    }
    EXPECT_EQ(late > 0, choice != config::PostValidation::kOff);
  }
}

}  // namespace
}  // namespace lockstep::plan
