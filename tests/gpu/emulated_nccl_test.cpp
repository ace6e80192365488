// Steps of ranks whose tensors on the GPU go through the backend nccl, on the emulated GPU with NCCL itself replaced: all
// ranks have the one device, and a call is one of a shared-memory communicator.
#include <gtest/gtest.h>

#include <memory>

#include "gpu/step_waits.h"
#include "lockstep/comm/test_nccl.h"
#include "support/tensors.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using engine::testing::Outcome;
using program::ScheduleKind;

constexpr int64_t kGlobalBatch = 4;

class OnTheDevice : public comm::FakeNccl {
 public:
  using FakeNccl::FakeNccl;
  bool takes(const at::Tensor& tensor) const override { return tensor.is_cuda(); }
};

void run_nccl(int ranks, const std::function<void(comm::World&)>& body) {
  const auto store = std::make_shared<lockstep::testing::MemoryStore>();
  lockstep::testing::run_ranks(ranks, [&](comm::World& shared) {
    comm::FakeDevice device;
    device.shared = &shared;
    device.store = store;
    const auto world = comm::join_nccl(shared.rank(), ranks, store,
                                       {.deadline = std::chrono::seconds(20), .local_rank = shared.rank(), .token = "secret"},
                                       std::make_unique<OnTheDevice>(device));
    try {
      body(*world);
    } catch (const std::exception& error) {
      world->abort(error.what());
      throw;
    }
  });
}

// Few rows: on the emulated GPU the threads of a kernel take turns.
std::vector<Case> cases() {
  std::vector<Case> all = {{.preset = "llama-test"},
          {.preset = "gpt2-test", .dropout = 0.1, .zero = 1},
          {.preset = "llama-test", .zero = 2},
          {.preset = "llama-test", .zero = 3},
          {.preset = "llama-test", .precision = config::Precision::kBf16, .zero = 3},
          {.preset = "gpt2-test", .dp = 1, .tp = 2},
          {.preset = "llama-test", .dp = 1, .tp = 2, .sequence_parallel = false},
          {.preset = "gpt2-test", .dp = 1, .pp = 2, .schedule = ScheduleKind::kOneFOneB, .blocks = 4},
          {.preset = "llama-test", .dp = 1, .pp = 2, .schedule = ScheduleKind::kZbH1, .blocks = 4}};
  for (Case& c : all) c.micro_batch = 1, c.seq_len = 8;
  return all;
}

TEST(EmulatedNccl, StepsWaitOncePerLossAndOncePerNorm) {
  for (const Case& c : cases()) {
    const program::Layout layout = layout_for(c, kGlobalBatch);
    engine::testing::expect_waits(engine::testing::waits_of_a_step(layout, run_nccl), cat(c.preset, " ", program::describe(layout)));
  }
}

TEST(EmulatedNccl, StepsAreThoseOfOneRankOnTheCpu) {
  for (const Case& c : cases()) {
    if (c.precision == config::Precision::kBf16) continue;
    SCOPED_TRACE(cat(c.preset, " ", program::describe(layout_for(c, kGlobalBatch))));
    const Outcome actual = engine::testing::train_layout(
        layout_for(c, kGlobalBatch), {.steps = 2, .device = lockstep::testing::gpu_device(), .run = run_nccl});
    const Case one{.preset = c.preset, .dp = 1, .micro_batch = kGlobalBatch, .seq_len = c.seq_len, .dropout = c.dropout, .blocks = c.blocks};
    const Outcome expected = engine::testing::train_layout(layout_for(one, kGlobalBatch), {.steps = 2});
    for (size_t i = 0; i < 2; ++i)
      EXPECT_NEAR(actual.steps.at(i).loss, expected.steps.at(i).loss, 1e-5 * expected.steps.at(i).loss) << "step " << i;
    for (const auto& [name, gradient] : expected.gradients)
      if (name.find("attention.k.bias") == std::string::npos)  // that is zero but for rounding
        lockstep::testing::expect_close(actual.gradients.at(name), gradient, name, 1e-4);
  }
}

}  // namespace
}  // namespace lockstep::engine
