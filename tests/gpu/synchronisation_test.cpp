// A step waits for the GPU once at LOSS and once at NORM, and nowhere else. Experts whose messages have slots wait for it nowhere.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gpu/slot_experts.h"
#include "gpu/step_waits.h"
#include "lockstep/config/fields.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using arch::Recompute;
using engine::testing::Case;
using engine::testing::MayWait;

// Few rows: on the emulated GPU the threads of a kernel take turns.
void check(Case c, const MayWait& may = {}) {
  c.micro_batch = 1;
  c.seq_len = 8;
  const program::Layout layout = engine::testing::layout_for(c, /*global_batch=*/4);
  engine::testing::expect_waits(engine::testing::waits_of_a_step(layout), cat(c.preset, " ", program::describe(layout)), may);
}

TEST(Synchronisation, OncePerLossAndOncePerNorm) {
  for (const char* preset : {"gpt2-test", "llama-test"})
    for (const config::Precision precision : {config::Precision::kFp32, config::Precision::kBf16})
      check({.preset = preset, .dp = 1, .precision = precision, .dropout = 0.1});
}

TEST(Synchronisation, AlsoWithRecomputation) {
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull})
    check({.preset = "gpt2-test", .dp = 1, .dropout = 0.1, .recompute = {2, recompute}});
}

TEST(Synchronisation, AlsoWithActivationsOnTheHost) {
  const std::vector<Recompute> full(3, Recompute::kFull);
  check({.preset = "llama-test", .dp = 1, .recompute = full, .offload = {.activations = true}});
}

// Sums of gradients have come to the host by LOSS, which reads behind them.
TEST(Synchronisation, AlsoWithStatesOnTheHost) {
  check({.preset = "llama-test", .dp = 1, .offload = {.optimizer = true}});
  check({.preset = "llama-test", .dp = 1, .offload = {.optimizer = true, .parameters = true}});
}

// Where ranks exchange tensors through the host, calls that are waited for at once wait for the device as well; others run
// on a thread of their own.
TEST(Synchronisation, AlsoWhereRanksShareOutStates) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  for (const int zero : {0, 1, 2, 3})
    check({.preset = "llama-test", .dp = 2, .zero = zero}, {.in_loss = kAny, .in_norm = kAny});
}

// Of two ranks the first, in its second pass: the first one may make what later ones use again. What travels does so on a thread of its own.
std::map<std::string, int64_t> waits_of_slots(const lockstep::testing::SlotCase& c) {
  std::map<std::string, int64_t> waits;
  lockstep::testing::run_ranks(2, [&](comm::World& world) {
    const auto communicator = world.all_ranks("ep");
    parallel::ExpertGroup group(*communicator, 2, 1, {.slots = lockstep::testing::slots_of(c)});
    const lockstep::testing::SlotLayer layer = lockstep::testing::slot_layer_here(c, group);
    const lockstep::testing::SlotLayer::Input input = layer.input(world.rank());
    layer.pass(input);
    std::optional<lockstep::testing::SynchronisationCounter> counter;
    if (world.rank() == 0) counter.emplace();
    layer.pass(input);
    if (counter) waits = counter->take();
  });
  return waits;
}

TEST(Synchronisation, NeverBetweenRouterAndLoadsOfSlots) {
  using config::Router;
  for (const Router router : {Router::kSoftmax, Router::kSoftmaxAfterTopk, Router::kSigmoid})
    for (const bool drops : {false, true}) {
      lockstep::testing::SlotCase c = lockstep::testing::slot_case(std::string(config::name_of(router)), router);
      if (drops) c.moe.capacity_factor = 0.5;
      if (router == Router::kSigmoid) {
        c.moe.balance = config::Balance::kBias;
        c.bias.assign(lockstep::testing::kSlotExperts, 0.25f);
        c.sizes.groups = 4, c.sizes.top_groups = 2;
      }
      EXPECT_EQ(waits_of_slots(c), (std::map<std::string, int64_t>())) << c.name << (drops ? " with a capacity" : "");
    }
}

// Their loads are read at LOSS, for each block with experts.
TEST(Synchronisation, AlsoWithExpertsOfStaticBuffers) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  check({.preset = "mixtral-test", .blocks = 1, .ep = 2, .moe = {.static_buffers = true}}, {.in_loss = kAny, .in_norm = kAny});
}

}  // namespace
}  // namespace lockstep::engine
