#include "lockstep/plan/evidence/run_memory.h"

#include <gtest/gtest.h>

#include "lockstep/base/units.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

constexpr double kGibibyte = static_cast<double>(kGiB);

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
                   {"recompute", recompute}, {"zero_stage", 0}, {"precision", "fp16"}};
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  return memory_parts(run, frame, choices_of(run, frame).front());
}

// What a microbatch keeps beside outputs of stages, which the paper frees.
double activations(const Megatron& of, const char* recompute, bool sequence_parallel) {
  const double in_flight = of.pp == 1 ? 0 : of.vpp == 1 ? of.pp : (2.0 * (of.pp - 1) + (of.vpp - 1) * of.pp + 1) / of.vpp;
  const double outputs = 2.0 * 2048 * of.micro_batch * of.hidden / (sequence_parallel ? 8 : 1) * in_flight;
  return (parts(of, recompute, sequence_parallel).activations - outputs) / kGibibyte;
}

// Figure 1 of the paper prints bytes of activations: sbhL (10 + 24/t + 5as/(ht)), and 34 sbhL/t.
TEST(RunMemory, ActivationsOfUnfusedBlocks) {
  EXPECT_NEAR(activations(k22B, "none", false), 59.25, 0.01);
  EXPECT_NEAR(activations(k22B, "selective", true), 9.5625, 0.01);
  EXPECT_NEAR(activations(k1T, "none", false), 131.25, 0.01);
  EXPECT_NEAR(activations(k1T, "selective", true), 26.5625, 0.01);
  // Interleaved: 1 + (p-1)/(pv) of the layers, for which the schedule holds (2 (p-1) + (v-1) p + 1)/(pv).
  const double schedule = (2.0 * 7 + 2 * 8 + 1) / 24, paper = 1 + 7.0 / 24;
  EXPECT_NEAR(activations(k175B, "none", false) / schedule * paper, 66.84375, 0.01);
}

// Section 5: ratios to tensor parallelism alone, in percent.
TEST(RunMemory, RatiosOfRecomputing) {
  const double all = activations(k22B, "none", false);
  EXPECT_NEAR(100 * activations(k22B, "none", true) / all, 66.84, 0.3);
  EXPECT_NEAR(100 * activations(k22B, "selective", false) / all, 49.42, 0.3);
  EXPECT_NEAR(100 * activations(k22B, "selective", true) / all, 16.18, 0.3);
  EXPECT_NEAR(100 * activations(k22B, "full", false) / all, 7.64, 0.3);
}

// 18 bytes for each of 12 L h^2 / (t p) parameters, and here of the embedding too.
TEST(RunMemory, StatesWithoutSharding) {
  const auto blocks = [](const Megatron& of) {
    const double embedding = 51200.0 * of.hidden / 8 * (of.pp == 1 ? 2 : 1), norms = 2.0 * of.layers * of.hidden / 8 / of.pp;
    return (parts(of, "full", false).states - 18 * (embedding + norms)) / kGibibyte;
  };
  EXPECT_NEAR(blocks(k22B), 45.5625, 0.01);
  EXPECT_NEAR(blocks(k175B), 45.5625, 0.01);
  EXPECT_NEAR(blocks(k530B), 31.640625, 0.01);
  EXPECT_NEAR(blocks(k1T), 32.958984375, 0.01);
}

TEST(RunMemory, ModernBlocksKeepFewerBytes) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 1;
  row["layout"]["zero_stage"] = 1;
  const auto activations_of = [&](const char* recompute) {
    row["layout"]["recompute"] = recompute;
    const PublishedRun run = run_of(row);
    const RunFrame frame = frame_of(run, {});
    return memory_parts(run, frame, choices_of(run, frame).front()).activations / 8192 / 32;
  };
  // 8h + 4aD + 4kD + 6f + 4a; selective less 4h of norms and 2f of products; full 2h.
  const double h = 4096, kv = 1024, f = 14336, a = 32;
  EXPECT_DOUBLE_EQ(activations_of("none"), 8 * h + 4 * h + 4 * kv + 6 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("selective"), 4 * h + 4 * h + 4 * kv + 4 * f + 4 * a);
  EXPECT_DOUBLE_EQ(activations_of("full"), 2 * h);
}

TEST(RunMemory, FsdpSharesStatesAmongAllRanks) {
  Json row = row_of_8b();
  row["layout"]["zero_stage"] = 3;
  row["layout"]["micro_batch"] = 1;
  row["layout"]["recompute"] = "full";
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  const RunMemoryParts of = memory_parts(run, frame, choices_of(run, frame).front());
  EXPECT_NEAR(of.states, 16 * 8.03e9 / 8, 0.002 * 16e9);
  EXPECT_NEAR(of.workspace, 14 * 8192.0 * 128256, 1);  // logits in fp32 and their gradient
  EXPECT_TRUE(fits(run, frame, of));
}

TEST(RunMemory, ExpertsAreSharedOutOverTheirRanks) {
  Json row = row_of_8b();
  row["model"]["moe"] = {{"experts", 8}, {"topk", 2}, {"expert_ffn", 14336}};
  row["layout"]["ep"] = 8;
  row["layout"]["zero_stage"] = 1;
  row["layout"]["micro_batch"] = 1;
  row["layout"]["recompute"] = "full";
  const auto states = [&](int ep) {
    row["layout"]["ep"] = ep;
    const PublishedRun run = run_of(row);
    const RunFrame frame = frame_of(run, {});
    return memory_parts(run, frame, choices_of(run, frame).front()).states;
  };
  // Of 8 experts a rank has one, whose states nobody else has (14 bytes), or all, whose optimizer eight share (4 + 10/8).
  const double expert = 32 * 3.0 * 4096 * 14336;
  EXPECT_NEAR(states(1) - states(8), (8 * (4 + 10.0 / 8) - 14) * expert, 1e6);
}

TEST(RunMemory, KindsOfMeasurements) {
  const Stack stack{.reserved = 2e9, .fragmentation = 0.05};
  const RunMemory memory = memory_of({.states = 10e9, .gathered = 5e9, .activations = 4e9, .workspace = 1e9}, stack);
  EXPECT_DOUBLE_EQ(memory.allocated, 20e9);
  EXPECT_DOUBLE_EQ(memory.reserved, 21e9);
  EXPECT_DOUBLE_EQ(memory.device, 23e9);
  EXPECT_EQ(memory.of(MemoryKind::kDevice), memory.device);
}

}  // namespace
}  // namespace lockstep::plan
