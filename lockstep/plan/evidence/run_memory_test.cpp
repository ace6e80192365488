#include "lockstep/plan/evidence/run_memory.h"

#include <gtest/gtest.h>

#include "lockstep/base/units.h"
#include "lockstep/plan/evidence/memory_stages.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

constexpr double kGibibyte = static_cast<double>(kGiB);

RunMemoryParts parts_of(const Json& row) {
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  return memory_parts(run, frame, choices_of(run, frame).front());
}

// Of Korthikanti et al. 2022, table 3: tensor parallel over 8, a microbatch of 1 (22B: 4), 2048 tokens.
struct Megatron {
  int64_t layers, hidden, heads, pp, vpp, micro_batch;
};
constexpr Megatron k22B{48, 6144, 64, 1, 1, 4}, k175B{96, 12288, 96, 8, 3, 1}, k530B{105, 20480, 128, 35, 3, 1}, k1T{128, 25600, 160, 64, 1, 1};

RunMemoryParts parts(const Megatron& of, const char* recompute, bool sequence_parallel) {
  Json row = row_of_145b();
  row["model"]["layers"] = of.layers;
  row["model"]["hidden"] = of.hidden;
  row["model"]["heads"] = row["model"]["kv_heads"] = of.heads;
  row["model"]["head_dim"] = of.hidden / of.heads;
  row["model"]["ffn"] = 4 * of.hidden;
  row["n_gpus"] = 8 * of.pp;
  row["layout"] = {{"tp", 8}, {"pp", of.pp}, {"vpp", of.vpp}, {"dp", 1}, {"micro_batch", of.micro_batch},
                   {"global_batch", of.micro_batch * of.pp * 8}, {"sequence_parallel", sequence_parallel},
                   {"recompute", recompute}, {"zero_stage", 0}, {"precision", "bf16"}};
  return parts_of(row);
}
double activations(const Megatron& of, const char* recompute, bool sequence_parallel) {
  return parts(of, recompute, sequence_parallel).activations / kGibibyte;
}

// Figure 1 of the paper, as data/published_runs.json has it: sbhL (10 + 24/t + 5as/(ht)), and 34 sbhL/t, of the first stage, which has
// 1 + (p-1)/(pv) of the layers in flight where it interleaves.
TEST(RunMemory, ActivationsOfUnfusedBlocks) {
  EXPECT_DOUBLE_EQ(activations(k22B, "none", false), 59.25);
  EXPECT_DOUBLE_EQ(activations(k22B, "selective", true), 9.5625);
  EXPECT_DOUBLE_EQ(activations(k175B, "none", false), 66.84375);
  EXPECT_DOUBLE_EQ(activations(k175B, "selective", true), 12.3515625);
  EXPECT_DOUBLE_EQ(activations(k530B, "none", false), 114.0234375);
  EXPECT_DOUBLE_EQ(activations(k530B, "selective", true), 23.076171875);
  EXPECT_DOUBLE_EQ(activations(k1T, "none", false), 131.25);
  EXPECT_DOUBLE_EQ(activations(k1T, "selective", true), 26.5625);
}

// Figure 7: percent of tensor parallelism alone, read off a chart.
TEST(RunMemory, RatiosOfRecomputing) {
  const auto expect = [](const Megatron& of, double sequence, double selective, double both, double full) {
    const double all = activations(of, "none", false);
    EXPECT_NEAR(100 * activations(of, "none", true) / all, sequence, 0.15);
    EXPECT_NEAR(100 * activations(of, "selective", false) / all, selective, 0.15);
    EXPECT_NEAR(100 * activations(of, "selective", true) / all, both, 0.15);
    EXPECT_NEAR(100 * activations(of, "full", false) / all, full, 0.15);
  };
  expect(k22B, 66.84, 49.42, 16.18, 7.64);
  expect(k175B, 62.04, 56.53, 18.49, 8.71);
  expect(k530B, 58.31, 62.04, 20.27, 9.42);
  expect(k1T, 58.31, 62.04, 20.27, 9.42);
}

// 18 bytes for each of 12 L h^2 / (t p) parameters, and here of the embedding too, of the head where it is another tensor, and of norms.
TEST(RunMemory, StatesWithoutSharding) {
  const auto blocks = [](const Megatron& of) {
    const double embedding = 51200.0 * of.hidden / 8, norms = 2.0 * of.layers * of.hidden / 8 / of.pp;
    return (parts(of, "none", false).states - 18 * (embedding + norms)) / kGibibyte;
  };
  EXPECT_NEAR(blocks(k22B), 45.5625, 1e-6);
  EXPECT_NEAR(blocks(k175B), 45.5625, 1e-6);
  EXPECT_NEAR(blocks(k530B), 31.640625, 1e-6);
  EXPECT_NEAR(blocks(k1T), 32.958984375, 1e-6);
}

// Rajbhandari et al. 2020, figure 1: states of 7.5 B parameters on 64 devices, in GB.
TEST(RunMemory, StatesOfZero) {
  Json row = row_of_145b();
  row["model"]["layers"] = 36;
  row["model"]["hidden"] = 4096;
  row["model"]["heads"] = row["model"]["kv_heads"] = 32;
  row["model"]["ffn"] = 4 * 4096;
  row["n_gpus"] = 64;
  const auto states = [&](int zero) {
    row["layout"] = {{"tp", 1}, {"pp", 1}, {"micro_batch", 1}, {"global_batch", 64}, {"recompute", "full"}, {"zero_stage", zero},
                     {"precision", "fp16"}};
    return parts_of(row).states;
  };
  const double parameters = states(0) / 16, scale = 7.5e9 / parameters / 1e9;
  EXPECT_NEAR(parameters, 7.5e9, 0.01 * 7.5e9);
  EXPECT_NEAR(states(0) * scale, 120, 0.05);
  EXPECT_NEAR(states(1) * scale, 31.4, 0.05);
  EXPECT_NEAR(states(2) * scale, 16.6, 0.05);
  EXPECT_NEAR(states(3) * scale, 1.9, 0.05);
}

TEST(RunMemory, ModernBlocksKeepFewerBytes) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 1;
  row["layout"]["zero_stage"] = 1;
  const auto activations_of = [&](const char* recompute) {
    row["layout"]["recompute"] = recompute;
    return parts_of(row).activations / 8192 / 32;
  };
  // 8h + 4aD + 4kD + 6f + 4a; selective less 4h of norms and 2f of products; full 2h.
  const double h = 4096, kv = 1024, f = 14336, a = 32;
  EXPECT_DOUBLE_EQ(activations_of("none"), 8 * h + 4 * h + 4 * kv + 6 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("selective"), 4 * h + 4 * h + 4 * kv + 4 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("full"), 2 * h);
  // In FP8 what four products read has 1 byte: 2h of the projection and the MLP, f, and beside what attention keeps the h that its output has.
  row["layout"]["precision"] = "fp8";
  EXPECT_DOUBLE_EQ(activations_of("none"), 6 * h + 4 * h + h + 4 * kv + 5 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("selective"), 2 * h + 4 * h + h + 4 * kv + 4 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("full"), 2 * h);
}

TEST(RunMemory, ExpertsAreSharedOutOverTheirRanks) {
  Json row = row_of_8b();
  row["model"]["moe"] = {{"experts", 8}, {"topk", 2}, {"expert_ffn", 14336}};
  row["layout"]["zero_stage"] = 1;
  row["layout"]["micro_batch"] = 1;
  row["layout"]["recompute"] = "full";
  const auto states = [&](int ep) {
    row["layout"]["ep"] = ep;
    return parts_of(row).states;
  };
  // Of 8 experts a rank has one, whose states nobody else has (14 bytes), or all, whose optimizer eight share (4 + 10/8).
  const double expert = 32 * 3.0 * 4096 * 14336;
  EXPECT_NEAR(states(1) - states(8), (8 * (4 + 10.0 / 8) - 14) * expert, 1e6);
}

// DeepSeek-V3 with BF16, PP4 VPP4 EP64 on 256 devices (arXiv:2603.07685): weights and gradients 36.4 GB at 6 bytes, the optimizer 32.1 GB at 12,
// of which 64 ranks share what is no expert. Which stage is printed is not said: these are the 15 blocks of the last, without its head.
TEST(RunMemory, ParametersOfExpertsAndLatents) {
  Json row = row_of_8b();
  row["model"] = {{"layers", 61}, {"hidden", 7168}, {"heads", 128}, {"kv_heads", 128}, {"head_dim", 128}, {"ffn", 18432}, {"gated_mlp", true},
                  {"vocab", 129280}, {"seq", 4096},
                  {"moe", {{"experts", 256}, {"topk", 8}, {"expert_ffn", 2048}, {"shared_expert_ffn", 2048}, {"dense_layers", 3}}},
                  {"mla", {{"q_lora_rank", 1536}, {"kv_lora_rank", 512}, {"qk_head_dim", 128}, {"qk_rope_dim", 64}, {"v_head_dim", 128}}}};
  row["n_gpus"] = 256;
  row["layout"] = {{"tp", 1}, {"pp", 4}, {"vpp", 4}, {"ep", 64}, {"micro_batch", 1}, {"global_batch", 2048}, {"recompute", "none"}, {"zero_stage", 1},
                   {"precision", "bf16"}};
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  const RunChoice choice = choices_of(run, frame).front();
  const MemoryStage last = memory_stages(memory_sizes(run, frame, choice), frame, choice).back();
  EXPECT_NEAR(6 * (last.dense + last.experts) / 1e9, 36.4, 0.02 * 36.4);
  EXPECT_NEAR((12 * last.experts + 12 * last.dense / 64) / 1e9, 32.1, 0.02 * 32.1);
}

TEST(RunMemory, KindsOfMeasurements) {
  const Stack stack{.reserved = 2e9, .fragmentation = 0.05};
  const RunMemory memory = memory_of({.states = 10e9, .gathered = 5e9, .activations = 4e9, .workspace = 1e9, .cached = 3e9}, stack);
  EXPECT_DOUBLE_EQ(memory.allocated, 17e9);
  EXPECT_DOUBLE_EQ(memory.reserved, 21e9);
  EXPECT_DOUBLE_EQ(memory.device, 23e9);
  EXPECT_EQ(memory.of(MemoryKind::kDevice), memory.device);
}

}  // namespace
}  // namespace lockstep::plan
