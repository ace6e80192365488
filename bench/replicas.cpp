// What comparing replicas costs: gpt2-124m on two data-parallel ranks of one thread each, both in this process. One JSON
// object on standard output: seconds of a step, of a comparison of all parameters and moments, and the share of a step that
// one comparison in 100 steps is.
//
//   bench_replicas [COMPARISONS] [STEPS]
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/config/load.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/replicas.h"
#include "lockstep/program/passes/job.h"

namespace {

using namespace lockstep;

constexpr int kRanks = 2;

struct Measured {
  std::vector<double> steps{}, comparisons{};
  int64_t every = 0;  // the default of train.check_replicas_every
};

template <typename Work>
double seconds(Work work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

nn::Microbatch random_tokens(const program::Layout& layout) {
  const auto draw = [&] { return at::randint(layout.model.vocab_size, {layout.micro_batch, layout.seq_len}, at::kLong); };
  return {.tokens = draw(), .targets = draw(), .valid_targets = layout.micro_batch * layout.seq_len};
}

// One rank; the first has the figures.
Measured run(comm::World& world, config::LoadedConfig loaded, int comparisons, int steps) {
  at::set_num_threads(1);
  const program::Layout layout = program::layout_of(loaded, world.size());
  engine::Groups groups(world, layout);
  engine::Executor executor({.layout = layout}, groups);
  const std::vector<nn::Microbatch> batch = {random_tokens(layout)};
  Measured measured{.every = loaded.config.train.check_replicas_every};
  for (int step = 0; step <= steps; ++step) {  // the first touches the memory
    const double took = seconds([&] { executor.step(batch, step + 1, 1e-4); });
    if (step > 0) measured.steps.push_back(took);
  }
  for (int round = 0; round <= comparisons; ++round) {
    bool same = true;
    const double took = seconds([&] { same = engine::replica_differences(executor, groups).empty(); });
    if (!same) throw std::runtime_error("the replicas differ");
    if (round > 0) measured.comparisons.push_back(took);
  }
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  const int comparisons = argc > 1 ? std::atoi(argv[1]) : 7, steps = argc > 2 ? std::atoi(argv[2]) : 3;
  const config::LoadedConfig loaded =
      config::load_config({}, {{"model.preset", "gpt2-124m"}, {"model.vocab_size", "50257"}, {"train.seq_len", "1024"},
                               {"train.global_batch", "2"}, {"train.micro_batch", "1"}});
  const auto region =
      std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(kRanks)));
  std::vector<Measured> measured(kRanks);
  std::vector<std::thread> ranks;
  std::atomic<bool> failed = false;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      comm::SharedMemoryWorld world(region, rank, kRanks, {.deadline = std::chrono::minutes(10)});
      try {
        measured[static_cast<size_t>(rank)] = run(world, loaded, comparisons, steps);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        world.abort(error.what());
        failed = true;
      }
    });
  for (std::thread& rank : ranks) rank.join();
  if (failed) return 1;
  const double step = median(measured[0].steps), comparison = median(measured[0].comparisons);
  const auto every = static_cast<double>(measured[0].every);
  const nlohmann::json report = {{"model", "gpt2-124m"},      {"ranks", kRanks},
                                 {"every", measured[0].every}, {"step_seconds", step},
                                 {"comparison_seconds", comparison}, {"share", comparison / (every * step)}};
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}
