#include "lockstep/plan/evidence/published_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/plan/evidence/measured_run.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

const std::string kShipped = LOCKSTEP_SOURCE_DIR "/lockstep/plan/evidence/published_runs.json";

std::string refusal(const std::string& text) {
  try {
    parse_published_runs(text, "runs.json");
  } catch (const DataError& error) {
    return error.message().code + " " + error.message().where + ": " + error.message().what;
  }
  return "accepted";
}

TEST(PublishedRun, IsReadFieldByField) {
  const PublishedRun run = run_of(row_of_145b());
  EXPECT_EQ(run.id, "big");
  EXPECT_EQ(run.source, "paper");
  EXPECT_EQ(run.tier, "A");
  EXPECT_EQ(run.device, "A100-SXM4-80GB");
  EXPECT_EQ(run.gpus, 1536);
  EXPECT_EQ(run.model.layers, 80);
  EXPECT_EQ(run.model.params, 145.6e9);
  EXPECT_EQ(run.model.gated, false);
  EXPECT_FALSE(run.model.experts);
  EXPECT_EQ(run.layout.vpp, 2);
  EXPECT_EQ(run.layout.recompute, "full");
  EXPECT_EQ(run.layout.precision, "fp16");
}

TEST(PublishedRun, NullAndMissingFieldsAreNotSet) {
  const PublishedRun run = run_of(row_of_8b());
  EXPECT_FALSE(run.layout.vpp);          // null
  EXPECT_FALSE(run.layout.cp);           // missing
  EXPECT_FALSE(run.layout.micro_batch);
  EXPECT_FALSE(run.layout.recompute);
  EXPECT_FALSE(run.model.latent);
  const PublishedRuns bare = parse_published_runs(R"([{"id": "a"}, {}])", "runs.json");  // the list alone
  ASSERT_EQ(bare.runs.size(), 2u);
  EXPECT_EQ(bare.runs[1].id, "run 2");
  EXPECT_EQ(bare.runs[1].gpus, 0);
}

TEST(PublishedRun, ExpertsLatentAttentionAndWindows) {
  Json row = row_of_8b();
  row["model"]["moe"] = {{"experts", 256}, {"topk", 8}, {"expert_ffn", 2048}, {"shared_expert_ffn", 2048}, {"dense_layers", 3}, {"mtp_layers", 1}};
  row["model"]["mla"] = {{"q_lora_rank", 1536}, {"kv_lora_rank", 512}, {"qk_head_dim", 128}, {"qk_rope_dim", 64}, {"v_head_dim", 128}};
  row["model"]["sliding_window"] = {{"window", 128}, {"layers", 16}};
  const RunModel model = run_of(row).model;
  ASSERT_TRUE(model.experts && model.latent && model.window);
  EXPECT_EQ(model.experts->count, 256);
  EXPECT_EQ(model.experts->dense_layers, 3);
  EXPECT_EQ(model.experts->prediction_layers, 1);
  EXPECT_EQ(model.latent->nope, 128);
  EXPECT_EQ(model.window->tokens, 128);
}

TEST(PublishedRun, WholeNumbersMayBeWrittenAsFloats) {
  Json row = row_of_145b();
  row["layout"]["tp"] = 8.0;
  EXPECT_EQ(run_of(row).layout.tp, 8);
}

std::string problem(const Json& row) { return run_of(row).problem; }

TEST(PublishedRun, AFieldOfAnotherTypeIsAProblemOfItsRow) {
  Json row = row_of_145b();
  row["layout"]["tp"] = "eight";
  EXPECT_EQ(problem(row), "run big: layout.tp is \"eight\", not a whole number");
  row = row_of_145b();
  row["model"]["gated_mlp"] = 1;
  EXPECT_EQ(problem(row), "run big: model.gated_mlp is 1, not true or false");
  row = row_of_145b();
  row["layout"]["micro_batch"] = 1.5;
  EXPECT_EQ(problem(row), "run big: layout.micro_batch is 1.5, not a whole number");
  row["layout"] = 3;
  EXPECT_EQ(problem(row), "run big: layout is 3, not an object");
  const PublishedRuns runs = runs_of({3, row_of_8b(), row});
  ASSERT_EQ(runs.runs.size(), 3u);  // none is lost, and the order is kept
  EXPECT_EQ(runs.runs[0].problem, "run 1 is 3, not an object");
  EXPECT_EQ(runs.runs[1].problem, "");
  EXPECT_EQ(runs.runs[2].id, "big");
  EXPECT_EQ(parse_measured_runs(file_of({3, row_of_8b(), row}), "runs.json").size(), 3u);
}

TEST(PublishedRun, AFileWithoutRunsIsRefused) {
  EXPECT_THAT(refusal(R"({"rows": []})"), HasSubstr("there is no list \"runs\""));
  EXPECT_THAT(refusal("{"), HasSubstr("LS1205"));
  EXPECT_THAT(refusal("runs\n{}"), HasSubstr("LS1205"));
}

TEST(PublishedRun, ARunOnEveryLine) {
  const std::string lines = row_of_145b().dump() + "\n{broken\n\n" + row_of_8b().dump() + "\n";
  const PublishedRuns runs = parse_published_runs(lines, "runs.jsonl");
  ASSERT_EQ(runs.runs.size(), 3u);
  EXPECT_EQ(runs.runs[0].layout, run_of(row_of_145b()).layout);
  EXPECT_EQ(runs.runs[1].problem, "run 2 is \"{broken\", not an object");
  EXPECT_EQ(runs.runs[2].model, run_of(row_of_8b()).model);
  EXPECT_EQ(parse_published_runs(row_of_8b().dump(), "runs.jsonl").runs.size(), 1u);
}

// 1536 devices are tp 8 x pp 8 x dp 24.
TEST(PublishedRun, DevicesAreTheProductOfTheDegrees) {
  for (const char* key : {"tp", "pp"}) {
    Json row = row_of_145b();
    const int64_t degree = row["layout"][key];
    row["layout"][key] = nullptr;
    const RunLayout layout = run_of(row).layout;
    EXPECT_EQ(key == std::string("tp") ? layout.tp : layout.pp, degree) << key;
  }
  Json row = row_of_145b();
  row.erase("n_gpus");
  EXPECT_EQ(run_of(row).gpus, 1536);
  row["layout"]["dp"] = nullptr;
  EXPECT_EQ(run_of(row).gpus, 0);  // nothing says it
}

TEST(PublishedRun, AnIdMayBeANumber) {
  Json row = row_of_8b();
  row["id"] = 17;
  EXPECT_EQ(run_of(row).id, "17");
}

TEST(PublishedRun, WhatWasMeasuredIsNotLookedAt) {
  Json row = row_of_145b();
  row["measured"] = "nonsense";
  row["derived"] = 7;
  EXPECT_EQ(run_of(row).id, "big");
}

TEST(PublishedRun, SourcesSayWhatIsKnownOfTheirMachines) {
  const PublishedRuns runs = runs_of({row_of_145b()});
  EXPECT_EQ(runs.sources.at("paper").gpus_per_node, 8);
  EXPECT_THAT(runs.sources.at("paper").network, HasSubstr("25 GB/s/GPU"));
  EXPECT_FALSE(runs.sources.at("notes").gpus_per_node);
  Json file = Json::parse(file_of({row_of_145b()}));
  file["sources"]["paper"]["cluster"]["gpus_per_node"] = "8 (H100) or 4 in NVL72 (GB200)";
  EXPECT_FALSE(parse_published_runs(file.dump(), "runs.json").sources.at("paper").gpus_per_node);
}

TEST(MeasuredRun, StepTimeAndMemoryByTheirKeys) {
  Json big = row_of_145b(), small = row_of_8b(), other = row_of_8b();
  other["id"] = "other";
  other["derived"] = nullptr;
  other["measured"] = {{"step_time_s", 3.5}, {"peak_memory_allocated_gb", 61.5}};
  const std::vector<MeasuredRun> runs = parse_measured_runs(file_of({big, small, other}), "runs.json");
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].seconds, 24.82);
  EXPECT_FALSE(runs[0].memory);
  EXPECT_EQ(runs[1].memory->bytes, 70.0 * 1024 * 1024 * 1024);
  EXPECT_EQ(runs[1].memory->kind, MemoryKind::kReserved);
  EXPECT_EQ(runs[2].seconds, 3.5);
  EXPECT_EQ(runs[2].memory->kind, MemoryKind::kAllocated);
  EXPECT_EQ(runs[2].memory->bytes, 61.5e9);
}

TEST(PublishedRuns, TheShippedFileIsWhole) {
  const PublishedRuns runs = read_published_runs(kShipped);
  EXPECT_EQ(runs.runs.size(), 739u);
  std::set<std::string> ids;
  for (const PublishedRun& run : runs.runs) {
    ids.insert(run.id);
    EXPECT_TRUE(runs.sources.contains(run.source)) << run.id;
  }
  EXPECT_EQ(ids.size(), runs.runs.size());
  EXPECT_EQ(read_measured_runs(kShipped).size(), runs.runs.size());
}

}  // namespace
}  // namespace lockstep::plan
