#include <gtest/gtest.h>

#include "lockstep/base/units.h"
#include "lockstep/plan/evidence/memory_forms.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

constexpr double kGibibyte = static_cast<double>(kGiB), kLogits = 8192.0 * 128256;

Json row_of(int gpus, int micro_batch, const char* recompute, const char* notes) {
  Json row = row_of_8b();
  row["n_gpus"] = gpus;
  row["gpu"]["name"] = "H100-SXM5-96GB-HBM2e-500W";
  row["layout"] = {{"tp", 1}, {"pp", 1}, {"dp", gpus}, {"micro_batch", micro_batch}, {"global_batch", gpus * micro_batch},
                   {"sequence_parallel", false}, {"recompute", recompute}, {"zero_stage", 3}, {"precision", "bf16"}};
  row["notes"] = notes;
  return row;
}

struct Predicted {
  RunMemoryParts parts{};
  RunMemory memory{};
  bool fits = false;
  double gibibytes() const { return memory.reserved / kGibibyte; }
};
Predicted predicted(const Json& row) {
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  const RunMemoryParts parts = memory_parts(run, frame, choices_of(run, frame).front());
  return {.parts = parts, .memory = memory_of(parts, frame.stack), .fits = fits(run, frame, parts)};
}

TEST(ShardedMemory, StatesAndLoss) {
  const Predicted of = predicted(row_of(8, 1, "full", ""));
  EXPECT_NEAR(of.parts.states, 16 * 8.03e9 / 8, 0.002 * 16e9);
  // Two parameters each of the embedding and the head, once where they are gathered; a block.
  EXPECT_NEAR(of.parts.gathered, 2 * (4 * 128256.0 * 4096 + 218.1e6), 0.001 * 4e9);
  // Logits in bf16, fp32, their logarithms, their gradient; two products of the MLP, the residual and its norm.
  EXPECT_DOUBLE_EQ(of.parts.workspace, 14 * kLogits + 8192 * (4 * 14336.0 + 4 * 4096));
  EXPECT_TRUE(of.fits);
}

// One input of a block, of its seven products the first, third and fifth output (the seventh, which nobody reads, without a compiler), attention.
TEST(ShardedMemory, SelectiveCheckpointsKeepEverySecondProduct) {
  const double compiled = 2 * 4096 + 2 * 4096 + 2 * 1024 + 2 * 14336 + (2 * 4096 + 4 * 32);
  EXPECT_DOUBLE_EQ(predicted(row_of(8, 1, "selective (SAC)", "")).parts.activations, 8192 * 32 * compiled);
  EXPECT_DOUBLE_EQ(predicted(row_of(8, 1, "selective (SAC)", "eager")).parts.activations, 8192 * 32 * (compiled + 2 * 4096));
}

// Later devices stand for a loss that is compiled.
TEST(ShardedMemory, LossOfLaterSoftware) {
  Json row = row_of(8, 1, "full", "");
  const double before = predicted(row).parts.workspace;
  row["gpu"]["name"] = "H200-SXM5-141GB";
  EXPECT_DOUBLE_EQ(predicted(row).parts.workspace, before - 8 * kLogits);
}

// What torchtitan's logs print of Llama 3.1 8B on H100 (data/published_runs.json), GiB.
TEST(ShardedMemory, PublishedPeaks) {
  const auto expect = [](const Json& row, double printed) { EXPECT_NEAR(predicted(row).gibibytes() / printed, 1, 0.03) << printed; };
  expect(row_of(8, 2, "selective (SAC)", "eager"), 82.4);
  expect(row_of(8, 2, "selective (SAC)", "torch.compile"), 77.0);
  expect(row_of(128, 2, "selective (SAC)", "eager"), 67.0);
  expect(row_of(128, 2, "selective (SAC)", "torch.compile"), 62.0);
  Json row = row_of(8, 1, "full", "");
  row["model"]["seq"] = 32768;
  expect(row, 83.9);
}

// Llama 3.1 405B, tensor parallel over 8 on 8 stages, the batch of a rank in as many microbatches.
Json row_of_405b(int vpp) {
  Json row = row_of(512, 1, "full", "AsyncTP");
  row["model"] = {{"layers", 126}, {"hidden", 16384}, {"heads", 128}, {"kv_heads", 8}, {"head_dim", 128}, {"ffn", 53248}, {"gated_mlp", true},
                  {"vocab", 128256}, {"seq", 32768}};
  row["layout"] = {{"tp", 8}, {"pp", 8}, {"vpp", vpp}, {"dp", 8}, {"micro_batch", nullptr}, {"global_batch", 64}, {"sequence_parallel", true},
                   {"recompute", "full"}, {"zero_stage", 3}, {"precision", "fp8"}, {"schedule", vpp == 1 ? "1F1B" : "Interleaved1F1B"}};
  return row;
}

TEST(ShardedMemory, PipelinesKeepParametersAndGradientsWhole) {
  // Of stages with 16 blocks: 2 bytes whole, 4 of gradients, and 2 x 2 of a block that is on its way.
  const double block = (2.0 * 16384 * 16384 + 2.0 * 16384 * 1024 + 3.0 * 16384 * 53248 + 2.0 * 16384) / 8;
  const Predicted plain = predicted(row_of_405b(1));
  EXPECT_DOUBLE_EQ(plain.parts.gathered, 6 * 16 * block + 4 * block);
  EXPECT_NEAR(plain.gibibytes() / 75.3, 1, 0.03);
  // With no more microbatches than stages a chunk reduces its gradients before the next one has some.
  EXPECT_NEAR(predicted(row_of_405b(2)).parts.gathered, 4 * 16 * block + 4 * block, 6 * 0.27e9);
}

TEST(ShardedMemory, DefaultsOfPyTorchsPipelines) {
  const auto choices = [](Json row, const char* schedule) {
    row["layout"]["vpp"] = nullptr;
    row["layout"]["schedule"] = schedule;
    row["layout"]["global_batch"] = 256;
    const PublishedRun run = run_of(row);
    return choices_of(run, frame_of(run, {}));
  };
  const std::vector<RunChoice> interleaved = choices(row_of_405b(1), "Interleaved1F1B");
  ASSERT_EQ(interleaved.size(), 1u);
  EXPECT_EQ(interleaved.front().micro_batch, 4);
  EXPECT_EQ(interleaved.front().virtual_stages, 2);
}

}  // namespace
}  // namespace lockstep::plan
