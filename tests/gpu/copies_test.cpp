// Copies between host and device, ordered by streams and events: right whatever else uses the memory, and without a wait on the
// host. The emulated device makes every copy as late as CUDA may.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/async_save.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/engine/activation_offload.h"
#include "lockstep/engine/host_states.h"
#include "lockstep/engine/test_offload.h"
#include "lockstep/engine/test_training.h"
#include "lockstep/train/batches.h"

namespace lockstep::engine {
namespace {

constexpr int64_t kSize = 1 << 16;

using lockstep::testing::gpu_device;
using lockstep::testing::SynchronisationCounter;
using Waits = std::map<std::string, int64_t>;

at::Tensor on_gpu(float number, int64_t size = kSize) {
  return at::full({size}, number, at::TensorOptions(at::kFloat).device(gpu_device()));
}
bool all(const at::Tensor& values, float number) { return values.cpu().equal(at::full({values.numel()}, number, at::kFloat)); }

// Takes memory that was given back, and writes over what a copy may still have to read or write.
void scribble(int64_t size = kSize) {
  std::vector<at::Tensor> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(on_gpu(-1, size));
}

std::filesystem::path folder(const std::string& name) {
  return std::filesystem::path(::testing::TempDir()) / cat("lockstep-copies-", name, "-", getpid());
}

TEST(Copies, InputsComeBackAsTheyWere) {
  SynchronisationCounter counter;
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  std::vector<at::Tensor> back;
  for (int round = 0; round < 2; ++round) {  // the second one finds host memory of the first
    for (int layer = 0; layer < 4; ++layer) {
      offload.evict({layer, 0}, on_gpu(static_cast<float>(10 * round + layer)));
      scribble();
    }
    for (int layer = 3; layer >= 0; --layer) {
      Copy copy = offload.fetch({layer, 0});
      scribble();
      copy.order_after();
      back.push_back(offload.take({layer, 0}).clone());
    }
  }
  const CopyTotals totals = copies.take_totals();
  EXPECT_EQ(totals.bytes, 16 * kSize * 4);
  EXPECT_EQ(totals.exposed_seconds, 0);
  EXPECT_EQ(counter.take(), Waits());
  for (size_t i = 0; i < back.size(); ++i) EXPECT_TRUE(all(back[i], static_cast<float>(10 * (i / 4) + 3 - i % 4))) << i;
}

// A microbatch's input goes into host memory that another's has just been read from.
TEST(Copies, HostMemoryIsReusedBehindTheCopyThatReadsIt) {
  SynchronisationCounter counter;
  CopyQueue copies;
  ActivationOffload offload(copies, nullptr);
  std::vector<at::Tensor> back;
  for (int microbatch = 0; microbatch < 5; ++microbatch) {
    offload.evict({0, microbatch}, on_gpu(static_cast<float>(microbatch)));
    offload.fetch({0, microbatch}).order_after();
    back.push_back(offload.take({0, microbatch}));
  }
  EXPECT_EQ(copies.take_totals().exposed_seconds, 0);
  EXPECT_EQ(counter.take(), Waits());
  for (size_t i = 0; i < back.size(); ++i) EXPECT_TRUE(all(back[i], static_cast<float>(i))) << i;
}

TEST(Copies, AnEvictedInputIsFreeWithTheNextEvictOrFetch) {
  testing::expect_evicted_inputs_are_free([] { return on_gpu(1); });
}

TEST(Copies, TheHostReadsWhatItHasWaitedFor) {
  CopyQueue copies;
  const at::Tensor host = at::full({kSize}, 0, at::TensorOptions(at::kFloat).pinned_memory(true));
  Copy copy = copies.copy(on_gpu(3), host, "there");
  copy.wait();
  EXPECT_TRUE(all(host, 3));
  copies.copy(on_gpu(4), host, "there again");
  copies.wait();
  EXPECT_TRUE(all(host, 4));
  EXPECT_EQ(copies.take_totals().copies, 2);
}

// Copies of which nobody keeps a handle hold what they read until they have read it.
TEST(Copies, HoldTheirTensors) {
  CopyQueue copies;
  const at::Tensor gpu = on_gpu(0);
  {
    const at::Tensor host = at::full({kSize}, 5, at::TensorOptions(at::kFloat).pinned_memory(true));
    copies.copy(host, gpu, "there");
  }
  const at::Tensor other = at::full({kSize}, -1, at::TensorOptions(at::kFloat).pinned_memory(true));
  copies.wait();
  EXPECT_TRUE(all(gpu, 5));
}

TEST(Copies, RoundsToBf16) {
  CopyQueue copies;
  const at::Tensor host = at::full({kSize}, 1.0009765625, at::TensorOptions(at::kFloat).pinned_memory(true));
  const at::Tensor gpu = at::empty({kSize}, at::TensorOptions(at::kBFloat16).device(gpu_device()));
  Copy copy = copies.copy(host, gpu, "there");
  copy.order_after();
  EXPECT_TRUE(gpu.cpu().equal(host.to(at::kBFloat16)));
}

TEST(Copies, ValuesAreUpdatedOnceTheDeviceHasReadThem) {
  HostStates states(testing::two_units(kSize), {.slots = testing::slots_of_two(arch::optimizer_spec(), kSize), .pinned = true});
  CopyQueue copies;
  const at::Tensor gpu = on_gpu(0);
  std::vector<at::Tensor> seen;
  for (const float number : {1.0F, 2.0F, 3.0F}) {
    states.value(0).fill_(number);
    Copy copy = copies.copy(states.fetched_from(0), gpu, "parameters of embed to the device");
    states.read_by(0, copy);
    states.value(0).fill_(-1);
    copy.order_after();
    seen.push_back(gpu.clone());
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(all(seen[i], static_cast<float>(i + 1))) << i;
}

TEST(Copies, ParametersComeFromDisk) {
  HostStates states(testing::two_units(kSize), {.slots = testing::slots_of_two(arch::optimizer_spec(), kSize),
                                                .disk_units = {0, 1},
                                                .names = {"embed", "blocks.0"},
                                                .disk_path = folder("disk"),
                                                .pinned = true});
  for (size_t unit = 0; unit < 2; ++unit) {
    states.disk()->open(unit);
    states.value(unit).fill_(static_cast<float>(unit) + 1);
    states.slot(unit, 0).fill_(0);
    states.slot(unit, 1).fill_(0);
    states.disk()->close(unit);
  }
  const at::Tensor gpu = on_gpu(0), staged = on_gpu(0);
  states.disk()->fetch_parameters(1, gpu).order_after();
  EXPECT_TRUE(all(gpu, 2));
  // From the staging buffer, which then takes other units.
  states.disk()->fetch(0);
  states.disk()->ready(0);
  Copy copy = states.disk()->fetch_parameters(0, staged);
  states.disk()->evict(0);
  for (int i = 0; i < 3; ++i) {
    states.disk()->fetch(1);
    states.disk()->evict(1);
  }
  copy.order_after();
  EXPECT_TRUE(all(staged, 1));
}

TEST(Copies, BatchesReachTheDevice) {
  const std::filesystem::path prefix = folder("tokens");
  data::TokenFileWriter writer(prefix, 100000);
  std::vector<int32_t> ids(10001);
  std::iota(ids.begin(), ids.end(), 0);
  writer.add_document(ids);
  writer.finish();
  const data::Sampler sampler(std::make_shared<data::TokenFile>(prefix), {.seq_len = 100, .shuffle = false});
  std::vector<nn::Microbatch> there;
  SynchronisationCounter counter;
  for (int64_t i = 0; i < 8; ++i) there.push_back(train::load_microbatch(sampler, {.first = 10 * i, .count = 10}, gpu_device()));
  EXPECT_EQ(counter.take(), Waits());
  for (int64_t i = 0; i < 8; ++i) {
    const nn::Microbatch here = train::load_microbatch(sampler, {.first = 10 * i, .count = 10}, at::kCPU);
    const nn::Microbatch& microbatch = there[static_cast<size_t>(i)];
    EXPECT_TRUE(microbatch.tokens.is_cuda() && microbatch.targets.is_cuda());
    EXPECT_TRUE(microbatch.tokens.cpu().equal(here.tokens)) << i;
    EXPECT_TRUE(microbatch.targets.cpu().equal(here.targets)) << i;
  }
}

// The step goes on, and changes the weights, as soon as start() returns.
TEST(Copies, ACheckpointHasTheWeightsOfItsStep) {
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    checkpoint::Saver saver({.world = world.communicator({0}, "checkpoint"), .directory = folder("checkpoints")});
    std::vector<StateTensor> state;
    for (const StateKind kind : {StateKind::kParameter, StateKind{"exp_avg"}, StateKind{"exp_avg_sq"}})
      state.push_back({.name = "w",
                       .kind = kind,
                       .global_shape = {kSize},
                       .offset = {0},
                       .local = on_gpu(3 + static_cast<float>(kind.key.size())),
                       .replica = 0,
                       .num_replicas = 1});
    saver.start(state, {.step = 1, .version = "1"});
    for (const StateTensor& tensor : state) tensor.local.fill_(-1);
    const std::optional<checkpoint::SaveResult> saved = saver.wait();
    ASSERT_TRUE(saved.has_value());
    checkpoint::load(saved->path, state);
    for (const StateTensor& tensor : state) EXPECT_TRUE(all(tensor.local, 3 + static_cast<float>(tensor.kind.key.size())));
  });
}

struct Outcome {
  std::vector<double> losses, norms;
};

Outcome run_steps(const program::Offload& offload, config::Precision precision, bool disk = false) {
  const at::Device device = gpu_device();
  const testing::Case c{.dp = 1, .precision = precision, .micro_batch = 1, .seq_len = 8, .offload = offload};
  program::Layout layout = testing::layout_for(c, 2);
  layout.recompute.assign(static_cast<size_t>(layout.model.layers), arch::Recompute::kFull);
  if (disk) testing::put_on_disk(layout);
  Outcome outcome;
  lockstep::testing::run_ranks(1, [&](comm::World& world) {
    Groups groups(world, layout);
    Executor executor({.layout = layout, .device = device, .max_grad_norm = 0.05, .disk_path = folder("states")}, groups);
    for (int64_t step = 0; step < 2; ++step) {
      const std::vector<nn::Microbatch> microbatches = testing::microbatches(layout, 0, step, device);
      const StepResult result = executor.step(microbatches, step + 1, 1e-2);
      outcome.losses.push_back(result.loss);
      outcome.norms.push_back(result.grad_norm);
    }
    outcome.losses.push_back(executor.evaluate(testing::microbatches(layout, 0, 2, device)[0]).first);
  });
  return outcome;
}

void expect_near(const Outcome& actual, const Outcome& expected, double bound) {
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(actual.losses[i] / expected.losses[i], 1, bound) << i;
  for (size_t i = 0; i < expected.norms.size(); ++i) EXPECT_NEAR(actual.norms[i] / expected.norms[i], 1, bound) << i;
}

// Inputs only move; states are updated on the CPU, whose AdamW rounds as it does there.
TEST(Copies, TrainingWithOffloadIsTrainingWithout) {
  using enum config::Precision;
  const Outcome fp32 = run_steps({}, kFp32), bf16 = run_steps({}, kBf16);
  const Outcome moved = run_steps({.activations = true}, kFp32);
  EXPECT_EQ(moved.losses, fp32.losses);
  EXPECT_EQ(moved.norms, fp32.norms);
  expect_near(run_steps({.optimizer = true, .parameters = true, .activations = true}, kFp32), fp32, 1e-4);
  expect_near(run_steps({.optimizer = true, .parameters = true}, kBf16, /*disk=*/true), bf16, 1e-2);
  expect_near(run_steps({.optimizer = true}, kBf16, /*disk=*/true), bf16, 1e-2);
  expect_near(run_steps({.optimizer = true}, kBf16), bf16, 1e-2);
}

}  // namespace
}  // namespace lockstep::engine
