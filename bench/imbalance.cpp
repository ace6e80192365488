// What an uneven load of experts costs: steps of a small Mixtral whose experts lie on several ranks of one thread each, all in this
// process. The bias of every router's choice is raised for the experts of rank 0, more and more, and each time steps are timed; then the
// bias follows the load (moe.balance = "bias") and they are timed again. Weights stay as they are. One JSON object on standard output.
//
//   bench_imbalance RANKS [STEPS]
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/config/load.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/expert_loads.h"
#include "lockstep/program/passes/job.h"

namespace {

using namespace lockstep;

constexpr int kBatch = 4;                            // sequences of a step
constexpr double kShifts[] = {0, 0.05, 0.1, 0.2, 1};  // of the bias of rank 0's experts; sigmoid scores are within 0 and 1
constexpr double kRate = 0.01;                       // moe.bias_rate
constexpr int kUpdates = 60;                         // from the last but one of these shifts
constexpr double kRecovered = kShifts[3];

// Means over the blocks with experts.
struct Load {
  double of_rank = 0;    // of the rank with most, over the mean of the ranks
  double of_expert = 0;  // of the expert with most, over the mean of all
};

struct Row {
  std::string what;
  Load load{};
  double seconds = 0;  // of a step, the median
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Load load_of(const program::Layout& layout, const engine::StepResult& result) {
  const auto here = static_cast<size_t>(layout.model.experts.count / layout.ep);
  const std::vector<engine::ExpertLoad> blocks = engine::expert_loads(layout, result.loads);
  Load load;
  for (const engine::ExpertLoad& block : blocks) {
    double most = 0;
    for (size_t first = 0; first < block.routed.size(); first += here) {
      double sum = 0;
      for (const double routed : block.routed.subspan(first, here)) sum += routed;
      most = std::max(most, sum);
    }
    load.of_rank += most * layout.ep / block.total() / static_cast<double>(blocks.size());
    load.of_expert += block.max_over_mean() / static_cast<double>(blocks.size());
  }
  return load;
}

class Rank {
 public:
  Rank(comm::World& world, const program::Layout& layout) : layout_(layout), groups_(world, layout), executor_({.layout = layout}, groups_) {}

  // The experts of rank 0 have `shift`, the others nothing.
  void set_bias(double shift) {
    const int64_t here = layout_.model.experts.count / layout_.ep;
    for (engine::StateTensor& tensor : executor_.store().state()) {
      const bool value = tensor.kind == engine::StateKind::kParameter || tensor.kind == engine::StateKind::kMaster;
      if (!value || !tensor.name.ends_with(".experts.router.bias")) continue;
      tensor.local.zero_();
      tensor.local.narrow(0, 0, here).fill_(shift);
    }
    executor_.store().loaded();
  }

  // Seconds from the moment when all ranks are there until this one is done, and the load.
  std::pair<double, Load> step() {
    const auto draw = [&] { return at::randint(layout_.model.vocab_size, {layout_.micro_batch, layout_.seq_len}, at::kLong); };
    nn::Microbatch batch{.tokens = draw(), .targets = draw(), .valid_targets = layout_.micro_batch * layout_.seq_len};
    batch.sequence_targets = nn::count_valid_of_sequences(batch.targets);
    groups_.world().barrier({.id = program::call_id(program::Purpose::kStart)}).wait();
    const auto began = std::chrono::steady_clock::now();
    const engine::StepResult result = executor_.step({batch}, ++steps_, /*lr=*/0);
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), load_of(layout_, result)};
  }

  // The median of so many steps; `prepare` runs before each, untimed.
  template <typename Prepare>
  Row timed(std::string what, int steps, const Prepare& prepare) {
    std::vector<double> seconds, ranks, experts;
    for (int i = 0; i < steps; ++i) {
      prepare();
      const auto [took, load] = step();
      seconds.push_back(took);
      ranks.push_back(load.of_rank);
      experts.push_back(load.of_expert);
    }
    return {.what = std::move(what), .load = {.of_rank = median(ranks), .of_expert = median(experts)}, .seconds = median(seconds)};
  }

 private:
  const program::Layout& layout_;
  engine::Groups groups_;
  engine::Executor executor_;
  int64_t steps_ = 0;
};

std::vector<Row> run(comm::World& world, const program::Layout& layout, int steps) {
  at::set_num_threads(1);
  Rank rank(world, layout);
  rank.set_bias(0);
  rank.step();  // the first touches the memory
  std::vector<Row> rows;
  for (const double shift : kShifts) rows.push_back(rank.timed(cat("rank 0's experts +", shift), steps, [&] { rank.set_bias(shift); }));
  rank.set_bias(kRecovered);
  for (int i = 0; i < kUpdates; ++i) rank.step();
  rows.push_back(rank.timed(cat("+", kRecovered, ", after ", kUpdates, " updates of the bias"), steps, [] {}));
  return rows;
}

program::Layout layout_for(int ranks) {
  config::LoadedConfig loaded = config::load_config(
      {}, {{"model.preset", "mixtral-test"}, {"model.hidden", "384"}, {"model.heads", "12"}, {"model.expert_ffn", "384"}, {"model.max_seq_len", "512"},
           {"model.vocab_size", "8192"}, {"model.router", "sigmoid"}, {"moe.balance", "bias"}, {"moe.bias_rate", std::to_string(kRate)},
           {"parallel.ep", std::to_string(ranks)}, {"train.seq_len", "256"}, {"train.global_batch", std::to_string(kBatch)},
           {"train.micro_batch", std::to_string(kBatch / ranks)}});
  return program::layout_of(loaded, ranks);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2, steps = argc > 2 ? std::atoi(argv[2]) : 5;
  if (ranks < 1 || kBatch % ranks != 0 || steps < 1) {
    std::fprintf(stderr, "usage: bench_imbalance RANKS [STEPS]; %d %% RANKS = 0\n", kBatch);
    return 2;
  }
  const program::Layout layout = layout_for(ranks);
  const auto region = std::make_shared<const launch::SharedRegion>(launch::SharedRegion::anonymous(launch::region_bytes(ranks)));
  std::vector<std::vector<Row>> measured(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  std::atomic<bool> failed = false;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      comm::SharedMemoryWorld world(region, rank, ranks, {.deadline = std::chrono::minutes(10)});
      try {
        measured[static_cast<size_t>(rank)] = run(world, layout, steps);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        world.abort(error.what());
        failed = true;
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (failed) return 1;
  nlohmann::json report = nlohmann::json::array();
  for (const Row& row : measured[0])
    report.push_back({{"ranks", ranks}, {"what", row.what}, {"of_rank", row.load.of_rank}, {"of_expert", row.load.of_expert}, {"seconds", row.seconds}});
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}
