// A few steps of a layout over ranks as threads, and what they leave; for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "lockstep/program/placement.h"
#include "lockstep/program/predict/traffic.h"
#include "support/run_ranks.h"

namespace lockstep::engine::testing {

// Steps as rank 0 reports them; gradients of the last step and values of whole parameters, by name. Of what two stages, or several
// ranks of one, hold and tell: the copies are the same to the bit.
struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, at::Tensor> gradients, values;
  bool copies_agree = true;
  int taken_back = 0;
};

using RunRanks = std::function<void(int ranks, const std::function<void(comm::World&)>& body)>;

struct TrainingOptions {
  int64_t steps = 1;
  int64_t first_samples = 0;  // whose samples the first step takes
  double lr = 1e-3;
  double max_grad_norm = 0.05;
  at::Device device = at::kCPU;
  bool may_pend = false;  // all steps but the last; `taken_back` counts those whose update was made again
  std::filesystem::path disk_path{};
  bool check_traffic = false;  // of every step: what was sent is what was predicted
  // This rank's microbatches of the samples `index`; empty: those of test_steps.h, whole sequences.
  std::function<std::vector<nn::Microbatch>(const program::Layout& layout, int rank, int64_t index)> load{};
  // On every rank: after each step with the samples `index`, and after the last.
  std::function<void(Executor& executor, int rank, int64_t index)> after_step{};
  std::function<void(Executor& executor, int rank)> at_end{};
  RunRanks run = [](int ranks, const auto& body) { lockstep::testing::run_ranks(ranks, body); };
};

inline Outcome train_layout(const program::Layout& layout, const TrainingOptions& options) {
  Outcome outcome;
  std::mutex mutex;
  options.run(layout.mesh.world_size(), [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout,
                       .device = options.device,
                       .max_grad_norm = options.max_grad_norm,
                       .disk_path = options.disk_path},
                      groups);
    for (int64_t step = 0; step < options.steps; ++step) {
      const bool may_pend = options.may_pend && step + 1 < options.steps;
      const int64_t index = options.first_samples + step;
      if (options.check_traffic) groups.take_ledger();
      const std::vector<nn::Microbatch> own =
          options.load ? options.load(layout, world.rank(), index) : microbatches(layout, world.rank(), index, options.device);
      const StepResult result = executor.step(own, step + 1, options.lr, may_pend);
      if (options.check_traffic) {
        const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
        EXPECT_EQ(program::Ledger::difference(predicted, groups.take_ledger()), std::vector<std::string>()) << "rank " << world.rank();
      }
      if (options.after_step) options.after_step(executor, world.rank(), index);
      const auto earlier = executor.take_validated();
      if (world.rank() != 0) continue;
      if (earlier) outcome.steps.push_back(*earlier);
      if (earlier && earlier->clip_factor < 1) ++outcome.taken_back;
      if (!result.pending) outcome.steps.push_back(result);
    }
    if (options.at_end) options.at_end(executor, world.rank());
    const int of_a_stage = layout.mesh.world_size() / layout.pipeline.ranks;
    for (int param = 0; param < static_cast<int>(executor.store().table().size()); ++param) {
      const at::Tensor gradient = executor.whole_gradient(param).cpu().clone();
      const at::Tensor value = executor.whole_value(param).cpu().clone();
      const arch::ParamSpec& spec = executor.store().table()[static_cast<size_t>(param)];
      if (world.rank() % of_a_stage != 0 && spec.expert < 0) continue;  // the first rank of a stage has all but experts
      const std::string& name = spec.name;
      const std::lock_guard lock(mutex);
      const auto [first, fresh] = outcome.values.emplace(name, value);
      if (fresh) outcome.gradients[name] = gradient;
      if (!fresh && !first->second.equal(value)) outcome.copies_agree = false;
    }
  });
  return outcome;
}

// The optimizer's states that the layout offloads: as few on the host as it can do with, the others on disk.
inline void put_on_disk(program::Layout& layout) {
  layout.offload.disk = true;
  int64_t least = program::host_plan(layout, 0).host();
  for (int64_t limit = least; limit > 0; limit -= 4096) {
    layout.offload.host_limit = limit;
    try {
      least = program::host_plan(layout, 0).host();
    } catch (const ConfigError&) {
      break;
    }
  }
  layout.offload.host_limit = least;
}

}  // namespace lockstep::engine::testing
