// What the device's allocator has seen of a rank, beside what the program predicts.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/test_steps.h"
#include "support/run_ranks.h"

namespace lockstep::engine {
namespace {

using engine::testing::Case;
using engine::testing::layout_for;
using lockstep::testing::gpu_device;
using program::MemoryCategory;

c10::DeviceAllocator& allocator() { return *c10::getDeviceAllocator(at::kCUDA); }
c10::CachingAllocator::Stat allocated() { return allocator().getDeviceStats(0).allocated_bytes[0]; }

// LibTorch takes memory of its own for products when it makes the first one.
void make_first_product(at::ScalarType dtype) {
  const at::Tensor a = at::ones({8, 8}, at::TensorOptions(gpu_device()).dtype(dtype));
  at::mm(a, a);
}

struct Compared {
  double states = 0, predicted_states = 0;
  double peak = 0, predicted_peak = 0;
};

Compared step_of(const program::Layout& layout) {
  Compared compared;
  make_first_product(layout.precision == config::Precision::kBf16 ? at::kBFloat16 : at::kFloat);
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    const int64_t before = allocated().current;
    Groups groups(world, layout);
    Executor executor({.layout = layout, .device = gpu_device()}, groups);
    const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), 0);
    compared.states = static_cast<double>(allocated().current - before);
    for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer})
      compared.predicted_states += static_cast<double>(predicted[category]);
    allocator().resetPeakStats(0);
    executor.step(testing::microbatches(layout, 0, 0, gpu_device()), 1, 1e-3);
    compared.peak = static_cast<double>(allocated().peak - before);
    compared.predicted_peak = static_cast<double>(predicted.peak);
  });
  return compared;
}

Case base() { return {.preset = "gpt2-10m", .dp = 1, .micro_batch = 2, .seq_len = 64}; }

TEST(DeviceMemory, OfStatesAndOfAStepIsThePredictedOne) {
  using config::Precision;
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    Case c = base();
    c.precision = precision;
    c.recompute.assign(4, precision == Precision::kFp32 ? arch::Recompute::kNone : arch::Recompute::kFull);
    const program::Layout layout = layout_for(c, /*global_batch=*/4);
    const Compared all = step_of(layout);
    const std::string where = program::describe(layout);
    EXPECT_NEAR(all.states, all.predicted_states, 0.02 * all.predicted_states) << where;
    // What layers take besides what they keep is other for a GPU's kernels than for the CPU's.
    EXPECT_NEAR(all.peak, all.predicted_peak, 0.1 * all.predicted_peak) << where;
  }
}

}  // namespace
}  // namespace lockstep::engine
