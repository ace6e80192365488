#include "lockstep/plan/evidence/run_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/arch/cost.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/plan/evidence/test_runs.h"

namespace lockstep::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using config::Recompute;
using config::ScheduleKind;

using Field = std::pair<std::string, std::string>;

const std::string kShipped = LOCKSTEP_SOURCE_DIR "/lockstep/plan/evidence/published_runs.json";

class Shipped : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { runs_ = read_published_runs(kShipped); }
  static const PublishedRun& run(const std::string& id) { return *std::ranges::find(runs_.runs, id, &PublishedRun::id); }
  static RunFrame frame(const std::string& id) { return frame_of(run(id), runs_.sources.at(run(id).source)); }
  // By its first choice.
  static program::Layout layout(const std::string& id) {
    const RunFrame of = frame(id);
    return pieces_of(of, choices_of(run(id), of).front()).pieces.front().layout;
  }
  static inline PublishedRuns runs_{};
};

int degree(const program::Layout& layout, mesh::AxisSet axes) { return layout.mesh.degree(axes); }

TEST_F(Shipped, GptOn32DevicesWithoutModelParallelism) {
  const program::Layout one = layout("sc21_table1-001");
  EXPECT_EQ(one.mesh.world_size(), 32);
  EXPECT_EQ(degree(one, one.samples()), 32);
  EXPECT_EQ(one.num_microbatches(), 1);
  EXPECT_EQ(one.micro_batch, 16);
  EXPECT_EQ(one.zero, 0);
  EXPECT_EQ(one.recompute_of(1), arch::Recompute::kFull);
  EXPECT_TRUE(one.model.tied);
  EXPECT_EQ(one.model.family, arch::Family::kGpt2);
  EXPECT_EQ(frame("sc21_table1-001").stack.kernels, Kernels::kUnfused);
  EXPECT_THAT(frame("sc21_table1-001").notes, Contains(HasSubstr("fp16")));
}

TEST_F(Shipped, MegatronWithInterleavedStages) {
  const PublishedRun& run = Shipped::run("dgxc_2412-001");  // gpt3-175B, tp 4, pp 8, 12 virtual stages, micro-batch 1, batch 256
  const program::Layout one = layout(run.id);
  EXPECT_EQ(one.mesh.world_size(), 128);
  EXPECT_EQ(one.pipeline.kind, ScheduleKind::kInterleaved);
  EXPECT_EQ(one.pipeline.stages(), 96);
  EXPECT_EQ(one.num_microbatches(), 64);
  EXPECT_TRUE(one.sequence_parallel);
  EXPECT_EQ(one.zero, 1);
  EXPECT_EQ(one.reduce_precision, config::Precision::kBf16);
  EXPECT_EQ(frame(run.id).stack.kernels, Kernels::kCurrent);
}

TEST_F(Shipped, AnEndOfThePipelineMayHaveFewerBlocks) {
  const program::Layout one = layout("megatron_bridge-009");  // 94 blocks over pp 4 x 12: two for each stage but the ends
  EXPECT_EQ(one.pipeline.stages(), 48);
  EXPECT_EQ(one.stage_layers(0).end - one.stage_layers(0).begin, 2);  // the embedding and a block
  EXPECT_EQ(one.stage_layers(1).end - one.stage_layers(1).begin, 2);
  EXPECT_EQ(one.stage_layers(47).end - one.stage_layers(47).begin, 2);  // a block and the head
  EXPECT_EQ(one.ep, 32);
}

TEST_F(Shipped, LatentAttentionAndExpertsOnARack) {
  const RunFrame of = frame("megatron_bridge-001");  // DeepSeek-V3 on 256 GB300
  EXPECT_TRUE(of.model.has_latent());
  EXPECT_EQ(of.model.latent.q_rank, 1536);
  EXPECT_EQ(of.model.experts.count, 256);
  EXPECT_EQ(of.model.experts.shared, 1);
  EXPECT_EQ(of.model.experts.dense_layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(of.model.layers, 62);  // with the one that predicts a further token
  EXPECT_EQ(of.cluster.devices_per_node, 4);
  EXPECT_EQ(of.cluster.domain, 64);
  EXPECT_EQ(of.options.linears, Linears::kFp8);
  EXPECT_THAT(of.notes, Contains(HasSubstr("further token")));
  const program::Layout one = layout("megatron_bridge-001");
  EXPECT_EQ(one.pipeline.virtual_stages, 8);
  EXPECT_EQ(one.num_microbatches(), 32);
}

TEST_F(Shipped, DualPipeIsDualPipeV) {
  const program::Layout one = layout("deepseek_v3-001");
  EXPECT_EQ(one.pipeline.kind, ScheduleKind::kDualPipeV);
  EXPECT_EQ(one.pipeline.ranks, 16);
  EXPECT_EQ(one.ep, 64);
}

TEST_F(Shipped, FsdpSharesOutParameters) {
  const program::Layout one = layout("torchtitan_h100-001");
  EXPECT_EQ(one.zero, 3);
  EXPECT_EQ(one.mesh.degree(mesh::Axis::kDpShard), 8);
  EXPECT_EQ(one.recompute_of(1), arch::Recompute::kSelective);
  EXPECT_EQ(frame("torchtitan_h100-001").stack.restore_products, 0.5);
  EXPECT_FALSE(one.model.tied);
  EXPECT_EQ(frame("torchtitan_h100-001").stack.kernels, Kernels::kFlash);
  const program::Layout context = layout("torchtitan_h100-010");  // cp 8, dp 1
  EXPECT_EQ(context.mesh.degree(mesh::Axis::kCp), 8);
  EXPECT_EQ(context.zero, 3);
}

TEST_F(Shipped, ModelsWithoutAGateHadTheFirstFlashKernels) {
  const RunFrame of = frame("llm_foundry-001");
  EXPECT_EQ(of.stack.kernels, Kernels::kFlash);
  EXPECT_THAT(of.stack.origins.at("attention_forward"), HasSubstr("first flash"));
  EXPECT_TRUE(of.model.tied);
  EXPECT_EQ(of.cluster.network.nic, 50e9);  // what the source says of A100 does not count for H100
}

TEST_F(Shipped, WindowsInTurn) {
  const PublishedRun& run = *std::ranges::find_if(runs_.runs, [](const PublishedRun& one) { return one.model.window.has_value(); });
  const arch::ModelConfig model = model_of(run).model;
  ASSERT_EQ(model.blocks.size(), 2u);
  EXPECT_EQ(model.window_of(model.blocks[0].front()), 128);
  EXPECT_EQ(model.window_of(model.blocks[1].front()), 0);
}

// The files have FLOPs by the same formula as tests know it, from step time and devices: so an error here is one of sizes.
TEST_F(Shipped, FlopsAreThoseOfTheFile) {
  const Json file = read_json(kShipped);
  int compared = 0;
  for (size_t i = 0; i < runs_.runs.size(); ++i) {
    const PublishedRun& run = runs_.runs[i];
    const Json& derived = file["runs"][i]["derived"];
    if (!derived.contains("model_tflops_causal") || derived["model_tflops_causal"].is_null()) continue;
    const double tokens = static_cast<double>(*run.layout.global_batch * *run.model.seq);
    const double devices = derived["step_time_s"].get<double>() * run.gpus * 1e12;
    const RunFlops flops = flops_of_token(run.model);
    EXPECT_NEAR(flops.causal * tokens / devices / derived["model_tflops_causal"].get<double>(), 1, 0.003) << run.id;
    EXPECT_NEAR(flops.noncausal * tokens / devices / derived["model_tflops_noncausal"].get<double>(), 1, 0.003) << run.id;
    if (run.model.experts && run.model.experts->prediction_layers > 0) continue;  // beside the model's own layers
    EXPECT_NEAR(arch::model_flops_per_token(model_of(run).model, *run.model.seq) / flops.causal, 1, 0.003) << run.id;
    ++compared;
  }
  EXPECT_GT(compared, 600);
}

// All but rows that lack sizes, degrees or a batch; no layout is refused.
TEST_F(Shipped, EveryRowIsLaidOutOrSaysWhatIsNotPrinted) {
  int laid_out = 0;
  for (const PublishedRun& run : runs_.runs) {
    try {
      const RunFrame of = frame_of(run, runs_.sources.at(run.source));
      for (const RunChoice& choice : choices_of(run, of)) {
        const RunPieces pieces = pieces_of(of, choice);
        EXPECT_EQ(pieces.pieces.front().layout.mesh.world_size(), run.gpus) << run.id;
        break;
      }
      ++laid_out;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.message().code, "LS1146") << run.id << ": " << error.what();
      EXPECT_THAT(error.message().what, HasSubstr("not printed")) << run.id;
      EXPECT_EQ(run.tier, "C") << run.id;
    }
  }
  EXPECT_GT(laid_out, 650);
}

TEST(RunLayout, OpenFieldsAreListed) {
  const PublishedRun run = run_of(row_of_8b());
  const RunFrame frame = frame_of(run, {});
  EXPECT_EQ(frame.config.parallel.dp, 8);
  const std::vector<RunChoice> choices = choices_of(run, frame);
  // zero 1, 0, 3; micro-batches 1 to 16, which divide 16 of a rank; three ways to recompute.
  EXPECT_EQ(choices.size(), 3u * 5 * 3);
  EXPECT_EQ(choices[0], (RunChoice{.micro_batch = 1, .virtual_stages = 1, .zero = 1, .recompute = Recompute::kNone}));
  EXPECT_EQ(choices[1].recompute, Recompute::kSelective);
  EXPECT_THAT(assumed_fields(run, choices[1]),
              ElementsAre(Field("micro_batch", "1"), Field("vpp", "1"), Field("zero_stage", "1"), Field("recompute", "selective")));
}

TEST(RunLayout, NothingIsOpenWhereTheRowSaysAll) {
  const PublishedRun run = run_of(row_of_145b());
  const RunFrame frame = frame_of(run, {});
  const std::vector<RunChoice> choices = choices_of(run, frame);
  ASSERT_EQ(choices.size(), 1u);
  EXPECT_TRUE(assumed_fields(run, choices[0]).empty());
  const RunPieces pieces = pieces_of(frame, choices[0]);
  ASSERT_EQ(pieces.pieces.size(), 1u);
  const program::Layout& layout = pieces.pieces[0].layout;
  EXPECT_EQ(layout.mesh.degree(mesh::Axis::kTp), 8);
  EXPECT_EQ(layout.mesh.degree(mesh::Axis::kPp), 8);
  EXPECT_EQ(layout.num_microbatches(), 48);
  EXPECT_FALSE(layout.overlap);  // gradients were summed behind the pipeline
  EXPECT_FALSE(layout.sequence_parallel);
}

TEST(RunLayout, MicrobatchesThatDoNotDivideLieBetweenThoseThatDo) {
  Json row = row_of_8b();
  row["layout"]["micro_batch"] = 3;
  row["layout"]["global_batch"] = 8 * 8;  // 2 2/3 microbatches of a rank
  const PublishedRun run = run_of(row);
  const RunFrame frame = frame_of(run, {});
  const RunPieces pieces = pieces_of(frame, choices_of(run, frame).front());
  ASSERT_EQ(pieces.pieces.size(), 2u);
  EXPECT_EQ(pieces.pieces[0].layout.num_microbatches(), 2);
  EXPECT_EQ(pieces.pieces[1].layout.num_microbatches(), 3);
  EXPECT_NEAR(pieces.pieces[0].weight, 1.0 / 3, 1e-12);
  EXPECT_NEAR(pieces.pieces[1].weight, 2.0 / 3, 1e-12);
  EXPECT_THAT(pieces.notes, ElementsAre(HasSubstr("microbatches")));
}

TEST(RunLayout, WhatCannotBeSaidIsRefusedByName) {
  const auto refusal = [](const Json& row) {
    try {
      const RunFrame frame = frame_of(run_of(row), {});
      pieces_of(frame, choices_of(run_of(row), frame).front());
    } catch (const ConfigError& error) {
      return error.message().code + " " + error.message().what;
    }
    return std::string("accepted");
  };
  Json row = row_of_145b();
  row["model"]["layers"] = nullptr;
  EXPECT_THAT(refusal(row), HasSubstr("LS1146 sizes of the model are not printed: layers"));
  row = row_of_145b();
  row["gpu"]["name"] = "TPU-v5p";
  EXPECT_THAT(refusal(row), HasSubstr("LS1140"));
  row = row_of_145b();
  row["layout"]["global_batch"] = nullptr;
  row["layout"]["micro_batch"] = nullptr;
  EXPECT_THAT(refusal(row), HasSubstr("global_batch is not printed"));
  row = row_of_145b();
  row["n_gpus"] = 100;
  EXPECT_THAT(refusal(row), HasSubstr("does not divide 100 devices"));
  row = row_of_145b();
  row["layout"]["precision"] = "fp8";
  EXPECT_THAT(refusal(row), HasSubstr("has no FP8"));
  row = row_of_145b();
  row["layout"]["vpp"] = 40;
  EXPECT_THAT(refusal(row), HasSubstr("LS1101"));
}

TEST(RunLayout, SizesThatRanksDoNotShareOutAreMadeToFit) {
  Json row = row_of_8b();
  row["layout"]["tp"] = 8;
  row["model"]["vocab"] = 32003;
  row["model"]["heads"] = 48;
  row["model"]["kv_heads"] = 12;
  row["model"]["head_dim"] = 128;
  const RunFrame frame = frame_of(run_of(row), {});
  EXPECT_EQ(frame.model.vocab_size, 32768);
  EXPECT_EQ(frame.model.kv_heads, 16);
  EXPECT_EQ(frame.notes.size(), 2u);
}

TEST(BlocksOfStages, EndsHaveFewer) {
  EXPECT_THAT(blocks_of_stages(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(blocks_of_stages(6, 4), ElementsAre(1, 2, 2, 1));
  EXPECT_THAT(blocks_of_stages(7, 4), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(blocks_of_stages(5, 4), ElementsAre(1, 2, 1, 1));
  EXPECT_THAT(blocks_of_stages(2, 4), ElementsAre(0, 1, 1, 0));
  for (int stages = 2; stages < 40; ++stages)
    for (int layers = stages - 2; layers < 130; ++layers) {
      const std::vector<int> blocks = blocks_of_stages(layers, stages);
      EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), 0), layers);
      EXPECT_LE(*std::max_element(blocks.begin(), blocks.end()) - 1, layers / stages);
    }
}

TEST(NicInWords, TheClauseOfTheDeviceCounts) {
  EXPECT_EQ(nic_in_words("8x HDR InfiniBand 200 Gb/s per node for compute (25 GB/s/GPU)", "A100-SXM4-80GB"), 25e9);
  EXPECT_EQ(nic_in_words("400 Gb/s (H100,GB200,B200) / 800 Gb/s (GB300,B300) per GPU (uncited)", "GB300-NVL72"), 100e9);
  EXPECT_EQ(nic_in_words("400 Gb/s (H100,GB200,B200) / 800 Gb/s (GB300,B300) per GPU (uncited)", "B200-SXM-180GB"), 50e9);
  EXPECT_EQ(nic_in_words("1600 Gb/s RoCE for A100 tables (25 GB/s/GPU); H100 fabric not printed", "H100-SXM5-80GB"), 0);
  EXPECT_EQ(nic_in_words("", "H100-SXM5-80GB"), 0);
}

TEST(ClusterOfRun, AsTheSourceSaysElseAsIsUsual) {
  const PublishedRuns runs = runs_of({row_of_145b(), row_of_8b()});
  const Cluster a100 = cluster_of(runs.runs[0], runs.sources.at("paper"));
  EXPECT_EQ(a100.nodes, 192);
  EXPECT_EQ(a100.devices(), 1536);
  EXPECT_EQ(a100.network.nic, 25e9);
  const Cluster h100 = cluster_of(runs.runs[1], {});
  EXPECT_EQ(h100.nodes, 1);
  EXPECT_EQ(h100.network.nic, 50e9);
}

// A layout that no schedule can have is refused where layouts are: until then stages without a block are none of an endless search's.
TEST(BlocksOfStages, MoreStagesThanBlocks) {
  for (const int layers : {1, 2, 5})
    for (const int stages : {4, 7, 12, 33}) {
      const std::vector<int> blocks = blocks_of_stages(layers, stages);
      ASSERT_EQ(blocks.size(), static_cast<size_t>(stages));
      EXPECT_EQ(std::accumulate(blocks.begin(), blocks.end(), 0), layers) << stages;
    }
}

TEST(RunFrame, SizesThatNoModelHasAreRefused) {
  const auto reason = [](const char* name, int64_t size) {
    Json row = row_of_8b();
    row["model"][name] = size;
    return predict_run(run_of(row), {}, [](const auto&...) { return StepEstimate{.seconds = 1}; }).reason;
  };
  EXPECT_EQ(reason("kv_heads", 8), "");
  EXPECT_THAT(reason("kv_heads", 0), HasSubstr("without key heads"));
  EXPECT_THAT(reason("head_dim", int64_t{1} << 40), HasSubstr("a size of"));
  EXPECT_THAT(reason("layers", int64_t{1} << 31), HasSubstr("2147483648 layers"));
}

}  // namespace
}  // namespace lockstep::plan
