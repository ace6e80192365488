// Routers of runs in bf16: they use the fp32 values that are updated, to the bit, wherever these lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/engine/test_experts.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::engine {
namespace {

using testing::Case;
using testing::experts;
using testing::kExpertBatch;
using testing::layout_for;
using testing::microbatches;

constexpr double kRate = 0.001;
constexpr size_t kExperts = 8, kPerToken = 2;
using Bias = std::array<float, kExperts>;

// Values that are one and the same in bf16.
Bias first_bias() {
  constexpr std::array kOrder = {3, 6, 0, 5, 1, 7, 4, 2};
  Bias bias{};
  for (size_t e = 0; e < kExperts; ++e) bias[e] = 0.5f + 0.0001f * static_cast<float>(kOrder[e]);
  return bias;
}

Case in_bf16(Case c) {
  c.precision = config::Precision::kBf16;
  c.blocks = 2;
  c.moe = {.balance = config::Balance::kBias, .bias_rate = kRate};
  c.router = config::Router::kSigmoid;
  return experts(c);
}

std::vector<Case> cases() {
  return {in_bf16({.dp = 1}),
          in_bf16({.dp = 2, .zero = 3, .ep = 2}),
          in_bf16({.dp = 4, .zero = 2, .dp_replicate = 2, .ep = 2}),
          in_bf16({.dp = 2, .zero = 1, .ep = 1}),
          in_bf16({.dp = 2, .kind = config::DataParallel::kParameterServer}),
          in_bf16({.dp = 1, .tp = 2, .ep = 2}),
          in_bf16({.dp = 2, .tp = 2, .row_groups = true, .zero = 1, .ep = 2}),
          in_bf16({.dp = 2, .pp = 2, .ep = 2}),
          in_bf16({.dp = 1, .offload = {.optimizer = true}}),
          in_bf16({.dp = 2, .zero = 3, .offload = {.optimizer = true, .parameters = true}, .ep = 2})};
}

// Of weights of zero all scores are sigmoid(0) = 0.5: the bias alone decides, the same for every token and block.
void set_routers(Executor& executor, const Bias& bias) {
  for (StateTensor& tensor : executor.store().state()) {
    if (tensor.name.ends_with(".experts.router.weight")) tensor.local.zero_();
    if (!tensor.name.ends_with(".experts.router.bias")) continue;
    EXPECT_EQ(tensor.kind, StateKind::kParameter) << "no second copy";
    EXPECT_EQ(tensor.local.scalar_type(), at::kFloat);
    for (int64_t i = 0; i < tensor.local.numel(); ++i)
      tensor.local[i].fill_(static_cast<double>(bias[static_cast<size_t>(tensor.offset[0] + i)]));
  }
  executor.store().loaded();
}

std::vector<double> loads_of(const Bias& bias, double tokens) {
  std::array<size_t, kExperts> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return 0.5f + bias[a] > 0.5f + bias[b]; });
  std::vector<double> loads(kExperts, 0.0);
  for (size_t i = 0; i < kPerToken; ++i) loads[order[i]] = tokens;
  return loads;
}

void update(const std::vector<double>& loads, Bias& bias) {
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(kExperts);
  for (size_t e = 0; e < kExperts; ++e) bias[e] -= (loads[e] > mean ? 1.0f : -1.0f) * static_cast<float>(kRate);
}

void expect_values(Executor& executor, const Bias& bias) {
  const std::vector<arch::ParamSpec>& table = executor.store().table();
  for (size_t row = 0; row < table.size(); ++row) {
    if (!table[row].name.ends_with(".experts.router.bias")) continue;
    const at::Tensor value = executor.whole_value(static_cast<int>(row)).cpu();
    for (size_t e = 0; e < kExperts; ++e)
      EXPECT_EQ(value[static_cast<int64_t>(e)].item<float>(), bias[e]) << table[row].name << " " << e;
  }
}

TEST(RouterPrecision, TheNextStepUsesTheBiasAsItWasUpdated) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::text_of(c));
    const program::Layout layout = layout_for(c, kExpertBatch);
    ASSERT_EQ(layout.model.experts.count, static_cast<int64_t>(kExperts));
    ASSERT_EQ(layout.model.experts.per_token, static_cast<int64_t>(kPerToken));
    std::mutex mutex;
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      Bias bias = first_bias();
      set_routers(executor, bias);
      for (int64_t step = 1; step <= 6; ++step) {
        const StepResult result = executor.step(microbatches(layout, world.rank(), step), step, /*lr=*/0);
        const std::vector<double> expected = loads_of(bias, static_cast<double>(kExpertBatch * layout.seq_len));
        const std::lock_guard lock(mutex);
        for (const ExpertLoad& load : expert_loads(layout, result.loads))
          EXPECT_EQ(std::vector<double>(load.routed.begin(), load.routed.end()), expected) << load.name << " in step " << step;
        update(expected, bias);
      }
      if (!layout.server_mode()) expect_values(executor, bias);
    });
  }
}

// What is predicted travels and is held: 4 bytes an element of a router where all else has 2.
TEST(RouterPrecision, CallsAndBytesAreThosePredicted) {
  install_memory_tracking();
  for (const Case& c : cases()) {
    SCOPED_TRACE(testing::text_of(c));
    const program::Layout layout = layout_for(c, kExpertBatch);
    const int64_t routers = c.blocks * static_cast<int64_t>(kExperts) * layout.model.hidden;  // elements, without the biases
    // Half of what 2 bytes an element would change.
    const auto bound = static_cast<double>(routers) / layout.shards(arch::ParameterGroup::kFp32);
    lockstep::testing::run_ranks(c.ranks(), [&](comm::World& world) {
      Groups groups(world, layout);
      Executor executor({.layout = layout}, groups);
      for (int64_t step = 1; step <= 2; ++step) {
        groups.take_ledger();
        executor.step(executor.load([&] { return microbatches(layout, world.rank(), step); }), step, 1e-3);
        const program::Ledger predicted = program::predict_ledger(layout, executor.program(), world.rank());
        EXPECT_EQ(program::Ledger::difference(predicted, groups.take_ledger()), std::vector<std::string>()) << "rank " << world.rank();
      }
      const program::MemoryBytes predicted = program::predict_memory(layout, executor.program(), world.rank());
      const program::MemoryBytes measured = executor.measured_memory();
      for (const MemoryCategory exact : {MemoryCategory::kParameters, MemoryCategory::kOptimizer})
        EXPECT_NEAR(static_cast<double>(measured[exact]), static_cast<double>(predicted[exact]), bound)
            << "rank " << world.rank() << " " << program::category_name(exact);
    });
  }
}

}  // namespace
}  // namespace lockstep::engine
