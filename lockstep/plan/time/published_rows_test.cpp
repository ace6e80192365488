// Steps that others have measured, by the constants of their generation and era: a check that nothing is far off. What the errors on all published
// runs are says plan/evidence.
#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/plan/time/step_estimate.h"
#include "lockstep/program/passes/make_layout.h"

namespace lockstep::plan {
namespace {

using config::ScheduleKind;

struct Row {
  const char* name;
  int64_t layers, hidden, heads;
  int devices, tp, pp, virtual_stages;
  int64_t micro_batch, batch;
  double seconds;  // measured
};

config::RunConfig config_of(const Row& row) {
  config::RunConfig config;
  config.model.family = "gpt2";
  config.model.layers = row.layers;
  config.model.hidden = row.hidden;
  config.model.heads = row.heads;
  config.model.vocab_size = 51200;
  config.model.max_seq_len = config.train.seq_len = 2048;
  config.train.micro_batch = row.micro_batch;
  config.train.global_batch = row.batch;
  config.train.precision = config::Precision::kBf16;
  config.parallel.tp = row.tp;
  config.parallel.pp = row.pp;
  config.parallel.bucket_mib = 160;
  if (row.pp == 1) return config;
  const int stages = row.pp * row.virtual_stages;
  config.parallel.virtual_stages = row.virtual_stages;
  config.parallel.schedule.kind = row.virtual_stages > 1 ? ScheduleKind::kInterleaved : ScheduleKind::kOneFOneB;
  config.parallel.layers_per_stage.list.assign(static_cast<size_t>(stages), static_cast<int>(row.layers / stages));
  return config;
}

StepEstimate estimate(const Row& row, const config::RunConfig& config, const char* device, Kernels kernels, Linears linears = Linears::kAsLayout) {
  const program::Layout layout = program::make_layout(config, arch::resolve_model(config.model), row.devices);
  const Cluster cluster = parse_cluster(cat(row.devices / 8, " nodes of 8x", device));
  return estimate_step(layout, cluster, stack_of(cluster.device, kernels), {.linears = linears, .traffic = false});
}

// Narayanan et al. 2021, table 1; times follow from its FLOP/s. Everything is computed again; gradients are summed in fp32 behind the backward
// passes of a pipeline.
TEST(PublishedRows, MegatronOf2021) {
  const Row rows[] = {{"1.7B", 24, 2304, 24, 32, 1, 1, 1, 16, 512, 3.528},      {"3.6B", 30, 3072, 32, 64, 2, 1, 1, 16, 512, 3.697},
                      {"7.5B", 36, 4096, 32, 128, 4, 1, 1, 16, 512, 3.696},     {"18.4B", 40, 6144, 48, 256, 8, 1, 1, 8, 1024, 9.399},
                      {"39.1B", 48, 8192, 64, 512, 8, 2, 1, 4, 1536, 14.453},   {"76.1B", 60, 10240, 80, 1024, 8, 4, 3, 2, 1792, 16.058},
                      {"145.6B", 80, 12288, 96, 1536, 8, 8, 2, 2, 2304, 24.817}};
  for (const Row& row : rows) {
    config::RunConfig config = config_of(row);
    config.parallel.sequence_parallel = false;
    config.parallel.overlap = row.pp == 1;
    config.memory.recompute.list = {config::Recompute::kFull};
    const StepEstimate step = estimate(row, config, "a100", Kernels::kUnfused);
    EXPECT_NEAR(step.seconds / row.seconds, 1, 0.15) << row.name << ": " << step.seconds << " s";
    EXPECT_TRUE(step.fits) << row.name;
  }
}

// NVIDIA dgxc-benchmarking 24.12, GPT-3 175B, nothing computed again.
TEST(PublishedRows, MegatronOf2024) {
  const Row bf16{"GPT-3 175B", 96, 12288, 96, 128, 4, 8, 12, 1, 256, 8.309}, fp8{"GPT-3 175B FP8", 96, 12288, 96, 128, 4, 8, 12, 1, 256, 5.626};
  for (const Row& row : {bf16, fp8}) {
    config::RunConfig config = config_of(row);
    config.parallel.zero = 1;
    config.parallel.reduce_precision = config::Precision::kBf16;
    const StepEstimate step = estimate(row, config, "h100", Kernels::kCurrent, row.seconds == fp8.seconds ? Linears::kFp8 : Linears::kAsLayout);
    EXPECT_NEAR(step.seconds / row.seconds, 1, 0.15) << row.name << ": " << step.seconds << " s";
  }
}

}  // namespace
}  // namespace lockstep::plan
