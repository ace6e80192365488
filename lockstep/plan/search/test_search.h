// Jobs, candidates by chance and times by formula for the tests of this room.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/arch/model_config.h"
#include "lockstep/plan/search/candidate.h"
#include "lockstep/plan/search/time_source.h"

namespace lockstep::plan::test_search {

// Owns what a Job refers to.
struct TestJob {
  config::RunConfig config{};
  arch::ModelConfig model{};
  Cluster cluster{};
  Stack stack{};
  TimeSource times = planner_times();
  Job job() const { return {.config = config, .model = model, .cluster = cluster, .stack = stack, .times = times}; }
};

struct JobOf {
  std::string preset{};
  std::string cluster{};
  int64_t batch = 16, length = 32;
  int64_t layers = 0;  // 0: the preset's
  std::function<void(config::RunConfig&)> change = [](config::RunConfig&) {};
};

// Sizes are of the test's own choosing; in bf16 on GPUs, as they are planned.
inline TestJob test_job(const JobOf& of) {
  TestJob job;
  job.config.model.preset = of.preset;
  if (of.layers > 0) job.config.model.layers = of.layers;
  job.config.train.global_batch = of.batch;
  job.config.train.seq_len = job.config.model.max_seq_len.emplace(of.length);
  job.config.train.precision = config::Precision::kBf16;
  of.change(job.config);
  job.model = arch::resolve_model(job.config.model);
  job.cluster = parse_cluster(of.cluster);
  job.stack = stack_of(job.cluster.device, usual_kernels(job.cluster.device));
  return job;
}

// Every word of an enum.
template <typename Enum>
std::vector<Enum> all_of_enum() {
  std::vector<Enum> all;
  for (size_t i = 0; i < config::choices_of(Enum{}).size(); ++i) all.push_back(static_cast<Enum>(i));
  return all;
}

// The same candidates on every machine: std::mt19937 says what it makes, distributions of the library do not.
class Chance {
 public:
  explicit Chance(unsigned seed) : numbers_(seed) {}

  template <typename T>
  T of(const std::vector<T>& values) {
    return values[numbers_() % values.size()];
  }

  // Degrees and sizes as they may come: mostly such as divide something, some that divide nothing.
  Candidate candidate() {
    static const std::vector<int> degrees = {1, 1, 1, 1, 1, 1, 2, 2, 2, 4, 4, 3, 8, 6, 12, 5};
    Candidate one{.tp = of(degrees), .pp = of(degrees), .cp = of(degrees), .ep = of(degrees), .etp = of(degrees), .dp = of(degrees)};
    one.schedule = of(schedules_);
    const int usual = config::v_shaped(one.schedule) || one.schedule == config::ScheduleKind::kInterleaved ? 2 : 1;
    one.virtual_stages = of(std::vector<int>{usual, usual, usual, 1, 2, 3});
    one.zero = of(std::vector<int>{0, 1, 2, 3});
    one.micro_batch = of(std::vector<int>{1, 1, 1, 2, 3, 4});
    one.recompute = of(all_of_enum<config::Recompute>());
    one.sequence_parallel = of(std::vector<int>{0, 1, 1}) == 1;
    one.dp_replicate = of(std::vector<int>{1, 1, 1, 2, 3, one.dp});
    one.offload_optimizer = of(std::vector<int>{0, 0, 1}) == 1;
    return one;
  }

 private:
  static std::vector<config::ScheduleKind> without_file() {
    std::vector<config::ScheduleKind> all = all_of_enum<config::ScheduleKind>();
    std::erase(all, config::ScheduleKind::kFile);
    return all;
  }

  std::mt19937 numbers_;
  std::vector<config::ScheduleKind> schedules_ = without_file();
};

}  // namespace lockstep::plan::test_search
