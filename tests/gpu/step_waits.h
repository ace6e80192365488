// Where a step of rank 0 waits for the GPU, by action, and what it may wait for.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/test_training.h"

namespace lockstep::engine::testing {

using StepWaits = std::map<std::string, std::map<std::string, int64_t>>;  // by action, by reason: how often

// Of the second step: the first may make what later ones use again.
inline StepWaits waits_of_a_step(const program::Layout& layout, const RunRanks& run = TrainingOptions().run) {
  StepWaits waits;
  run(layout.mesh.world_size(), [&](comm::World& world) {
    std::optional<lockstep::testing::SynchronisationCounter> counter;
    std::string now = "the beginning";
    const auto enter = [&](std::string next) {
      if (counter)
        for (const auto& [reason, count] : counter->take()) waits[now][reason] += count;
      now = std::move(next);
    };
    const at::Device device = lockstep::testing::gpu_device();
    Groups groups(world, layout);
    Executor executor({.layout = layout,
                       .device = device,
                       .before_action = [&](const program::Action& action,
                                            ParameterStore&) { enter(std::string(program::action_name(action.kind))); }},
                      groups);
    executor.step(microbatches(layout, world.rank(), 0, device), 1, 1e-3);
    const auto batch = microbatches(layout, world.rank(), 1, device);
    enter("the beginning");
    if (world.rank() == 0) counter.emplace();
    executor.step(batch, 2, 1e-3);
    enter("the end");
  });
  return waits;
}

struct MayWait {
  int64_t in_loss = 1, in_norm = 1;  // nowhere else
};

inline void expect_waits(const StepWaits& waits, const std::string& where, const MayWait& may = {}) {
  for (const auto& [action, reasons] : waits) {
    int64_t count = 0;
    std::string told;
    for (const auto& [reason, times] : reasons) {
      count += times;
      told += cat(" ", reason, ": ", times, ";");
    }
    const int64_t most = action == program::action_name(program::ActionKind::kLoss)   ? may.in_loss
                         : action == program::action_name(program::ActionKind::kNorm) ? may.in_norm
                                                                                      : 0;
    EXPECT_LE(count, most) << where << ": " << action << " waits:" << told;
  }
}

}  // namespace lockstep::engine::testing
