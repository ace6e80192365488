// Where a step waits for the GPU: nowhere but once at LOSS and once at NORM.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::microbatches;
using lockstep::testing::gpu_device;
using lockstep::testing::SynchronisationCounter;
using program::ActionKind;

// Before the first action: no kind of action.
using Waits = std::map<std::string, std::map<std::string, int64_t>>;  // by action, by reason

// Of rank 0, in the second step: the first may make what later ones use again.
Waits waits_of_a_step(const program::Layout& layout) {
  Waits waits;
  lockstep::testing::run_ranks(layout.mesh.world_size(), [&](comm::World& world) {
    const bool first = world.rank() == 0;
    std::optional<SynchronisationCounter> counter;
    std::string now;
    const auto note = [&](std::string next) {
      if (counter)
        for (const auto& [reason, count] : counter->take()) waits[now][reason] += count;
      now = std::move(next);
    };
    Groups groups(world, layout);
    Executor executor({.layout = layout,
                       .device = gpu_device(),
                       .before_action = [&](const program::Action& action, ParameterStore&) {
                         note(std::string(program::action_name(action.kind)));
                       }},
                      groups);
    executor.step(microbatches(layout, world.rank(), 0, gpu_device()), 1, 1e-3);
    const auto batch = microbatches(layout, world.rank(), 1, gpu_device());
    if (first) counter.emplace();
    now = "the beginning";
    executor.step(batch, 2, 1e-3);
    note("");
  });
  return waits;
}

std::string text(const std::map<std::string, int64_t>& reasons) {
  std::string all;
  for (const auto& [reason, count] : reasons) all += cat(" ", reason, ": ", count, ";");
  return all;
}

// `staged`: ranks exchange tensors through the host, so that calls that are waited for at once wait for the device as well.
void expect_no_waits(const program::Layout& layout, bool staged = false) {
  const std::string loss(program::action_name(ActionKind::kLoss)), norm(program::action_name(ActionKind::kNorm));
  for (const auto& [action, reasons] : waits_of_a_step(layout)) {
    int64_t count = 0;
    for (const auto& [reason, times] : reasons) count += times;
    const bool may = action == loss || action == norm;
    if (may && staged) continue;
    EXPECT_LE(count, may ? 1 : 0) << program::describe(layout) << ": " << action << " waits:" << text(reasons);
  }
}

TEST(Synchronisation, AStepWaitsOnceForTheLossAndOnceForTheNorm) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      expect_no_waits(layout_for({.preset = preset, .dp = 1, .precision = precision, .dropout = 0.1}, 8));
}

TEST(Synchronisation, SoDoesOneThatRecomputes) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull})
    expect_no_waits(layout_for({.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .recompute = {2, recompute}}, 8));
}

TEST(Synchronisation, SoDoesOneWhoseActivationsLiveOnTheHost) {
  const std::vector<Recompute> full(3, Recompute::kFull);
  expect_no_waits(layout_for({.preset = "llama-test", .dp = 1, .recompute = full, .offload = {.activations = true}}, 8));
}

TEST(Synchronisation, RanksThatShareOutStatesStartTheirCallsWithoutWaiting) {
  for (const int zero : {0, 1, 2, 3}) expect_no_waits(layout_for({.preset = "llama-test", .dp = 2, .zero = zero}, 8), true);
}

}  // namespace
}  // namespace lockstep::engine
