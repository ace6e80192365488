#include "lockstep/plan/evidence/prediction.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "lockstep/plan/evidence/runs_json.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

// A second for each microbatch; how often it is asked, and how often for memory.
struct Asked {
  std::atomic<int> all = 0, memory = 0;
  Estimator estimator() {
    return [this](const program::Layout& layout, const Cluster&, const Stack&, const EstimateOptions& options) {
      ++all;
      memory += options.memory;
      StepEstimate step{.seconds = static_cast<double>(layout.num_microbatches())};
      if (options.memory) step.stages.push_back({.peak = 1e9});
      return step;
    };
  }
};

Json with(Json row, const char* id, const char* field, const Json& value) {
  row["id"] = id;
  row["layout"][field] = value;
  return row;
}

TEST(PredictRuns, RowsThatSayTheSameAreEstimatedOnce) {
  const Json row = row_of_145b();
  const PublishedRuns runs = runs_of({row, with(row, "again", "vpp", 2), with(row, "other", "vpp", 5)});
  Asked asked;
  const std::vector<Prediction> predictions = predict_runs(runs, asked.estimator());
  EXPECT_EQ(asked.all, 2);
  EXPECT_EQ(predictions[1].id, "again");
  EXPECT_EQ(predictions[1].seconds, predictions[0].seconds);
  EXPECT_EQ(predictions[2].choice.virtual_stages, 5);
}

TEST(PredictRuns, ThreadsChangeNothing) {
  std::vector<Json> rows;
  for (const int size : {1, 2, 4, 8}) rows.push_back(with(row_of_145b(), "row", "micro_batch", size));
  rows.push_back(row_of_8b());
  Asked one, four;
  EXPECT_EQ(runs_json(predict_runs(runs_of(rows), four.estimator(), {.threads = 4})), runs_json(predict_runs(runs_of(rows), one.estimator())));
  EXPECT_EQ(four.all, one.all);
}

TEST(PredictRun, MemoryOfThisLibraryIsFoundForTheBestAlone) {
  Asked asked, not_asked;
  EXPECT_EQ(predict_run(run_of(row_of_8b()), {}, asked.estimator()).own_memory, 1e9);
  EXPECT_EQ(asked.memory, 1);
  EXPECT_EQ(predict_run(run_of(row_of_8b()), {}, not_asked.estimator(), {.own_memory = false}).own_memory, 0);
  EXPECT_EQ(not_asked.memory, 0);
  EXPECT_EQ(not_asked.all, asked.all - 1);
}

// 145.6 B parameters in 18 bytes each need at least 31 devices of 86 GB: the degrees in powers of two that hold them are 32 and more.
TEST(PredictRun, DegreesThatAreNotPrintedAreTheLeastThatFit) {
  Json row = with(row_of_145b(), "open", "tp", nullptr);
  row["layout"]["pp"] = nullptr;
  row["layout"]["vpp"] = nullptr;
  Asked asked;
  const Prediction prediction = predict_run(run_of(row), {}, asked.estimator(), {.own_memory = false});
  EXPECT_TRUE(prediction.predicted()) << prediction.reason;
  int64_t devices = 1;
  for (const auto& [field, value] : prediction.assumed)
    if (field == "tp" || field == "pp") devices *= std::stoi(value);
  EXPECT_GE(devices, 32);
  EXPECT_LE(devices, 64);
}

TEST(PredictRun, WholeLayersAreMadeAgainOnlyWhereSelectiveRecomputationIsFarTooLarge) {
  int whole = 0;
  for (const int size : {1, 2, 4, 8, 16}) {
    const PublishedRun run = run_of(with(row_of_8b(), "row", "micro_batch", size));
    Asked asked;
    const Prediction prediction = predict_run(run, {}, asked.estimator(), {.own_memory = false});
    const RunFrame frame = frame_of(run, {});
    RunChoice selective = prediction.choice;
    selective.recompute = config::Recompute::kSelective;
    const double needed = memory_of(memory_parts(run, frame, selective), frame.stack).device / frame.cluster.device.memory;
    const bool is_whole = prediction.choice.recompute == config::Recompute::kFull;
    EXPECT_EQ(is_whole, needed > 1.1) << size << ": " << needed;
    whole += is_whole;
  }
  EXPECT_GT(whole, 0);
}

TEST(StackOfRun, APipelineInBf16OrWithZeroIsDeepSpeeds) {
  Json row = row_of_145b();
  row["layout"]["vpp"] = nullptr;
  EXPECT_FALSE(has_pipeline_engine(run_of(row), Kernels::kUnfused));  // fp16 without ZeRO: Megatron
  const PublishedRun zero = run_of(with(row, "zero", "zero_stage", 1));
  EXPECT_TRUE(has_pipeline_engine(zero, Kernels::kUnfused));
  EXPECT_FALSE(has_pipeline_engine(zero, Kernels::kFlash));
  EXPECT_TRUE(has_pipeline_engine(run_of(with(row, "bf16", "precision", "bf16")), Kernels::kUnfused));
  EXPECT_FALSE(has_pipeline_engine(run_of(row_of_145b()), Kernels::kUnfused));  // it interleaves
  const RunFrame frame = frame_of(zero, {});
  for (const RunChoice& choice : choices_of(zero, frame)) EXPECT_EQ(choice.virtual_stages, 1);
  EXPECT_GT(frame.stack.host_share, stack_of(frame.cluster.device, Kernels::kUnfused).host_share);
}

// Of Hopper, FSDP is of its first time; the stages of a pipeline that share gradients are of no library of it.
TEST(StackOfRun, KernelsByWhatIsShared) {
  Json row = row_of_8b();
  const auto kernels = [&](int zero, int pp) {
    row["layout"]["zero_stage"] = zero;
    row["layout"]["pp"] = pp;
    return kernels_of(run_of(row), device_kind("h100"));
  };
  EXPECT_EQ(kernels(1, 1), Kernels::kCurrent);
  EXPECT_EQ(kernels(2, 1), Kernels::kFlash);
  EXPECT_EQ(kernels(2, 4), Kernels::kCurrent);
  EXPECT_EQ(kernels(3, 4), Kernels::kFlash);
}

// Words of a row's notes say how PyTorch ran.
TEST(StackOfRun, WordsOfNotes) {
  Json row = row_of_8b();
  row["layout"]["zero_stage"] = 3;
  row["layout"]["precision"] = "fp8";
  const DeviceKind& device = device_kind("h100");
  const auto stack_of_notes = [&](const char* notes) {
    row["notes"] = notes;
    return stack_of_run(run_of(row), device);
  };
  const Stack usual = stack_of_notes("2D vanilla TP"), eager = stack_of_notes("eager"), compiled = stack_of_notes("torch.compile + float8");
  EXPECT_EQ(usual.pointwise_factor, stack_of(device, Kernels::kFlash).pointwise_factor);
  EXPECT_GT(eager.pointwise_factor, usual.pointwise_factor);
  EXPECT_LT(compiled.pointwise_factor, usual.pointwise_factor);
  EXPECT_EQ(eager.tensor_exposed, usual.tensor_exposed);
  EXPECT_LT(stack_of_notes("2D + AsyncTP").tensor_exposed, usual.tensor_exposed);
  EXPECT_EQ(stack_of_notes("eager, not torch.compile").pointwise_factor, eager.pointwise_factor);
  row["layout"]["precision"] = "bf16";
  EXPECT_EQ(stack_of_notes("FSDP2").pointwise_factor, eager.pointwise_factor);
  EXPECT_EQ(stack_of_notes("torch.compile").pointwise_factor, compiled.pointwise_factor);
  row["layout"]["zero_stage"] = 1;
  row["notes"] = "Apex";
  EXPECT_EQ(stack_of_run(run_of(row), device_kind("a100")).pointwise_factor, eager.pointwise_factor);
  row["layout"]["zero_stage"] = 3;
  EXPECT_EQ(stack_of_notes("fused kernels for gates and rotations").pointwise_factor, usual.pointwise_factor);
  row["model"]["gated_mlp"] = false;
  EXPECT_NE(stack_of_notes("FSDP2").pointwise_factor, eager.pointwise_factor);
}

// 24 replicas of 2304 sequences in micro-batches of 2: 48, of which 8 fill and drain.
TEST(StackOfRun, DualPipeHidesExchanges) {
  const PublishedRun run = run_of(with(row_of_145b(), "dual", "schedule", "DualPipe"));
  const DeviceKind& device = device_kind("h800");
  const double moves = 20.0 / 132, alone = 8.0 / 48;
  EXPECT_NEAR(stack_of_run(run, device).expert_exposed, stack_of(device, Kernels::kCurrent).expert_exposed * (moves + (1 - moves) * alone), 1e-12);
}

}  // namespace
}  // namespace lockstep::plan
