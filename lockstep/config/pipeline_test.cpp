// The keys of pipelines, and what is refused of them together.
#include <filesystem>
#include <utility>

#include "lockstep/base/file.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/config/test_refusals.h"

namespace lockstep::config {
namespace {

using config::testing::expect_refused_alone;
using config::testing::layout_refusal;
using config::testing::read;
using config::testing::refusal;
using config::testing::Refused;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(PipelineConfig, ReadsTheKeys) {
  const RunConfig config = read("[parallel]\npp = 4\nschedule = \"interleaved\"\nvirtual_stages = 2\n"
                                "layers_per_stage = [3, 4, 4, 3, 1, 1, 1, 1]\n");
  EXPECT_EQ(config.parallel.pp, 4);
  EXPECT_EQ(config.parallel.schedule.kind, ScheduleKind::kInterleaved);
  EXPECT_EQ(config.parallel.virtual_stages, 2);
  EXPECT_THAT(config.parallel.layers_per_stage.list, ElementsAre(3, 4, 4, 3, 1, 1, 1, 1));
  const RunConfig plain = read("");
  EXPECT_EQ(plain.parallel.pp, 1);
  EXPECT_EQ(plain.parallel.schedule.kind, ScheduleKind::kOneFOneB);
  EXPECT_EQ(plain.parallel.virtual_stages, 0);
  EXPECT_THAT(plain.parallel.layers_per_stage.list, IsEmpty());
}

TEST(PipelineConfig, LayersPerStageAsAListOrALayout) {
  const auto counts = [](const std::string& value) {
    return read("[parallel]\nlayers_per_stage = " + value).parallel.layers_per_stage.list;
  };
  EXPECT_THAT(counts("[3, 4, 4, 3]"), ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(counts("\"3,4,4,3\""), ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(counts("\"3, 4*2, 3\""), ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(counts("\"2*3\""), ElementsAre(2, 2, 2));
  EXPECT_THAT(counts("[\"0\", \"1*2\"]"), ElementsAre(0, 1, 1));
  EXPECT_THAT(counts("12"), ElementsAre(12));
  EXPECT_THAT(counts("[]"), IsEmpty());
  EXPECT_THAT(counts("\"\""), IsEmpty());
  for (const char* text : {"3,4*2,3", "[3,4,4,3]", "[3, 4*2, 3]"}) {
    const LoadedConfig loaded = load_config({}, {{"parallel.layers_per_stage", text}});
    EXPECT_THAT(loaded.config.parallel.layers_per_stage.list, ElementsAre(3, 4, 4, 3)) << text;
    EXPECT_EQ(load_config_text(resolved_toml(loaded), "x").config, loaded.config) << text;
  }
}

TEST(PipelineConfig, ListsThatCannotBeRead) {
  EXPECT_EQ(refusal("[parallel]\nlayers_per_stage = \"3,x\"\n"),
            "run.toml:2:20: error LS1046: parallel.layers_per_stage = \"3,x\": \"x\" is no count of blocks\n"
            "    2 | layers_per_stage = \"3,x\"\n"
            "      |                    ^~~~~ write [3, 4, 4, 3], or \"3,4*2,3\" for the same");
  for (const char* bad : {"\"3,,4\"", "\"3*0\"", "\"3*-1\"", "\"*2\"", "\"3*2*2\"", "\"3.5\"", "\"1*999999999999\"", "\" \""})
    EXPECT_THAT(refusal(std::string("[parallel]\nlayers_per_stage = ") + bad), HasSubstr("LS1046")) << bad;
  EXPECT_THAT(refusal("[parallel]\nlayers_per_stage = [2, -1]\n"),
              HasSubstr("LS1044: parallel.layers_per_stage = [2, -1] is out of range"));
  EXPECT_THAT(refusal("[parallel]\nlayers_per_stage = true\n"), HasSubstr("LS1043"));
  EXPECT_THAT(refusal("[parallel]\nlayers_per_stage = [1, \"2\"]\n"), HasSubstr("LS1043"));
}

TEST(PipelineConfig, SchedulesByName) {
  const std::pair<const char*, ScheduleKind> all[] = {
      {"naive", ScheduleKind::kNaive}, {"gpipe", ScheduleKind::kGPipe}, {"1f1b", ScheduleKind::kOneFOneB},
      {"interleaved", ScheduleKind::kInterleaved}, {"zb-h1", ScheduleKind::kZbH1}, {"zb-h2", ScheduleKind::kZbH2},
      {"zb-v", ScheduleKind::kZbV}, {"dualpipe-v", ScheduleKind::kDualPipeV}};
  for (const auto& [name, kind] : all) {
    const PipelineSchedule schedule = read(std::string("[parallel]\nschedule = \"") + name + "\"").parallel.schedule;
    EXPECT_EQ(schedule.kind, kind) << name;
    EXPECT_EQ(name_of(schedule), name);
    EXPECT_EQ(name_of(kind), name);
  }
  const PipelineSchedule file = read("[parallel]\nschedule = \"file:grid.csv\"").parallel.schedule;
  EXPECT_EQ(file.kind, ScheduleKind::kFile);
  EXPECT_EQ(file.file, "grid.csv");
  EXPECT_EQ(name_of(file), "file:grid.csv");
  EXPECT_THAT(refusal("[parallel]\nschedule = \"file\"\n"), HasSubstr("LS1045"));
  EXPECT_EQ(refusal("[parallel]\nschedule = \"1f2b\"\n"),
            "run.toml:2:12: error LS1045: parallel.schedule = \"1f2b\" is none of naive, gpipe, 1f1b, interleaved, zb-h1, "
            "zb-h2, zb-v, dualpipe-v and no file:PATH\n"
            "    2 | schedule = \"1f2b\"\n"
            "      |            ^~~~~~ did you mean \"1f1b\"?");
  EXPECT_THAT(refusal("[parallel]\nschedule = \"zbv\"\n"), HasSubstr("did you mean \"zb-v\"?"));
  EXPECT_THAT(refusal("[parallel]\nschedule = \"interleave\"\n"), HasSubstr("did you mean \"interleaved\"?"));
  EXPECT_THAT(refusal("[parallel]\nschedule = \"chimera\"\n"), HasSubstr("dualpipe-v | file:PATH"));
  EXPECT_THAT(refusal("[parallel]\nschedule = \"file:\"\n"), HasSubstr("LS1045"));
}

TEST(PipelineConfig, RefusesValues) {
  EXPECT_THAT(refusal("[parallel]\npp = 0\n"), HasSubstr("LS1044: parallel.pp = 0 is out of range"));
  EXPECT_THAT(refusal("[parallel]\nvirtual_stages = -1\n"), HasSubstr("LS1044"));
}

TEST(PipelineConfig, WhatTheKeysChoose) {
  const PipelineChoice plain = pipeline_choice(read("[parallel]\npp = 2"));
  EXPECT_EQ(plain.virtual_stages, 1);
  EXPECT_THAT(plain.blocks, IsEmpty());
  for (const char* two : {"interleaved", "zb-v", "dualpipe-v"})
    EXPECT_EQ(pipeline_choice(read(std::string("[parallel]\npp = 2\nschedule = \"") + two + "\"")).virtual_stages, 2) << two;
  const PipelineChoice all = pipeline_choice(
      read("[parallel]\npp = 2\nschedule = \"interleaved\"\nvirtual_stages = 3\nlayers_per_stage = \"1*6\""));
  EXPECT_EQ(all.virtual_stages, 3);
  EXPECT_THAT(all.blocks, ElementsAre(1, 1, 1, 1, 1, 1));
  // What an update ahead of the norm gains, and what it cannot live beside.
  const auto post_validation = [](const std::string& keys) { return pipeline_choice(read("[parallel]\n" + keys)).post_validation; };
  for (const char* gains : {"zb-h2", "zb-v"})
    EXPECT_TRUE(post_validation(std::string("pp = 2\nschedule = \"") + gains + "\"")) << gains;
  for (const char* keys : {"pp = 2", "pp = 2\nschedule = \"zb-h1\"", "pp = 2\nschedule = \"zb-h2\"\npost_validation = \"off\"",
                           "pp = 2\nschedule = \"zb-v\"\nzero = 3",
                           "pp = 2\nschedule = \"zb-v\"\n[memory]\noffload = [\"optimizer\"]",
                           "pp = 2\nschedule = \"zb-v\"\n[train]\nnonfinite = \"skip\"", "dp = 2"})
    EXPECT_FALSE(post_validation(keys)) << keys;
  EXPECT_TRUE(post_validation("pp = 2\npost_validation = \"on\""));
  EXPECT_EQ(pipeline_choice(read("[parallel]\npp = 2\nschedule = \"file:a/b.csv\"")).virtual_stages, 0);
}

TEST(PipelineConfig, AGridIsReadOnceByThePipelineThatUsesIt) {
  const std::string path = ::testing::TempDir() + "lockstep_pipeline_config_test.csv";
  const auto config_with = [&](const std::string& pp) { return read("[parallel]\npp = " + pp + "\nschedule = \"file:" + path + "\""); };
  write_file(path, "0F0,0B0\n1F0,1B0\n");
  RunConfig config = config_with("2"), alone = config_with("1");
  for (RunConfig* each : {&config, &alone}) read_schedule(*each);
  EXPECT_EQ(config.parallel.schedule.grid, "0F0,0B0\n1F0,1B0\n");
  EXPECT_FALSE(alone.parallel.schedule.grid);
  EXPECT_EQ(config, config_with("2"));
  write_file(path, "another");
  read_schedule(config);
  EXPECT_EQ(config.parallel.schedule.grid, "0F0,0B0\n1F0,1B0\n");
  const Field& field = *find_field("parallel", "schedule");
  EXPECT_FALSE(field.assign(config, Value("file:" + path)).has_value());  // as with any new value
  read_schedule(config);
  EXPECT_EQ(config.parallel.schedule.grid, "another");
  std::filesystem::remove(path);
  RunConfig missing = config_with("2");
  read_schedule(missing);
  EXPECT_FALSE(missing.parallel.schedule.grid);
}

TEST(CheckPipeline, RanksOfAllAxes) {
  EXPECT_EQ(ranks_wanted(read("[parallel]\ntp = 2\npp = 3\ndp = 2")), 12);
  EXPECT_EQ(data_parallel_size(read("[parallel]\ntp = 2\npp = 2"), 8), 2);
  EXPECT_EQ(data_parallel_size(read("[parallel]\ntp = 65536\npp = 65536"), 8), 1);
  const Refused all[] = {
      {"[parallel]\ntp = 4\npp = 2\ndp = 3", 32, "run.toml:4", "[mesh] tp(4) x pp(2) x dp(3) = 24, but 32 ranks were started",
       "use dp 4, or -n 24"},
      {"[parallel]\ntp = 4\npp = 2\ndp = 2", 24, "run.toml:4", "[mesh] tp(4) x pp(2) x dp(2) = 16, but 24 ranks were started",
       "use dp 3, or tp 6, or pp 3"},
      // Of the others, 6 ranks do not divide 8 heads, and 2 blocks with embedding and head are no 5 stages.
      {"[model]\nheads = 8\nlayers = 2\n[parallel]\ntp = 4\npp = 2\ndp = 2", 24, "run.toml:7", "but 24 ranks were started",
       "use dp 3, or pp 3, or -n 16"},
      {"[model]\nlayers = 2\n[parallel]\npp = 2\ndp = 2", 10, "run.toml:5", "[mesh] pp(2) x dp(2) = 4, but 10 ranks were started",
       "use -n 4, or dp 5 with global_batch 45"},
      {"[parallel]\ntp = 2\npp = 2", 6, "run.toml:3", "[mesh] tp(2) x pp(2) x dp(1) = 4, but 6 ranks were started",
       "use tp 1 or 3, or pp 1 or 3, or -n 4"},
      {"[parallel]\npp = 4", 1, "run.toml:2", "[mesh] pp(4) x dp(1) = 4, but 1 rank was started", "use pp 1, or -n 4"},
      {"[parallel]\ntp = 2\npp = 2", 7, "run.toml:3", "= 4, but 7 ranks were started", "use -n 4"},
      {"[parallel]\ntp = 1048576\npp = 4", 8, "run.toml:2", "tp(1048576) x pp(4) x dp(1) = 4194304 ranks, more than 1048576", "use tp 2 or 1"},
  };
  for (const Refused& refused : all) expect_refused_alone(refused);
  for (const char* fits : {"pp = 4", "pp = 2\ndp = 2", "tp = 2\npp = 2", "pp = 2\nzero = 3", "pp = 2\ndata_parallel = \"parameter_server\""})
    EXPECT_EQ(layout_refusal(std::string("[parallel]\n") + fits, 4), "accepted") << fits;
}

TEST(CheckPipeline, StagesAndLayers) {
  const Refused all[] = {
      {"[model]\nlayers = 2\n[parallel]\npp = 6", 6, "run.toml:4",
       "pp(6) = 6 stages, but embedding + model.layers(2) + head = 4 layers", "use pp 3 or 2"},
      {"[model]\nlayers = 4\n[parallel]\npp = 4\nschedule = \"zb-v\"", 4, "run.toml:4",
       "pp(4) x virtual_stages(2) = 8 stages, but embedding + model.layers(4) + head = 6 layers", "use pp 2, or schedule 1f1b"},
      {"[model]\nlayers = 6\n[parallel]\npp = 4\nschedule = \"interleaved\"\nvirtual_stages = 3", 4, "run.toml:4",
       "= 12 stages, but embedding + model.layers(6) + head = 8 layers", "use pp 2, or virtual_stages 2 or 1"},
      {"[model]\nlayers = 12\n[parallel]\npp = 4\nlayers_per_stage = \"4*3\"", 4, "run.toml:5",
       "layers_per_stage = \"4*3\" names 3 stages, but pp(4) = 4", "use \"3*4\", or leave it out"},
      {"[parallel]\npp = 2\nschedule = \"interleaved\"\nlayers_per_stage = [4]", 2, "run.toml:4",
       "layers_per_stage = \"4\" names 1 stage, but pp(2) x virtual_stages(2) = 4", "leave it out, or name 4 counts"},
      {"[model]\nlayers = 12\n[parallel]\npp = 4\nlayers_per_stage = [3, 4, 4, 3]", 4, "run.toml:5",
       "layers_per_stage = \"3,4*2,3\" has 14 blocks, but model.layers = 12", "use \"3*4\", or leave it out"},
      {"[model]\nlayers = 12\n[parallel]\npp = 4\nlayers_per_stage = [3, 2, 3, 3]", 4, "run.toml:5",
       "has 11 blocks, but model.layers = 12", "use \"3*4\", or leave it out"},
      {"[model]\nlayers = 4\n[parallel]\npp = 3\nlayers_per_stage = [2, 0, 2]", 3, "run.toml:5",
       "stage 1 of layers_per_stage = \"2,0,2\" has no layer", "use \"1*2,2\", or leave it out"},
  };
  for (const Refused& refused : all) expect_refused_alone(refused);
  for (const char* fits : {"pp = 4", "pp = 6", "pp = 3\nschedule = \"zb-v\"", "pp = 2\nlayers_per_stage = [0, 4]",
                           "pp = 3\nlayers_per_stage = [0, 4, 0]", "pp = 6\nlayers_per_stage = \"0,1*4,0\"",
                           "pp = 2\nschedule = \"interleaved\"\nlayers_per_stage = \"1*4\""})
    EXPECT_EQ(layout_refusal(std::string("[model]\nlayers = 4\n[parallel]\n") + fits, 12), "accepted") << fits;
}

TEST(CheckPipeline, Schedules) {
  const Refused all[] = {
      {"[parallel]\npp = 2\nvirtual_stages = 2", 2, "run.toml:3", "virtual_stages(2), but schedule 1f1b has one stage of a rank",
       "use virtual_stages 1, or schedule interleaved"},
      {"[parallel]\npp = 2\nschedule = \"dualpipe-v\"\nvirtual_stages = 3", 2, "run.toml:4",
       "virtual_stages(3), but schedule dualpipe-v has two stages of a rank", "use virtual_stages 2"},
      {"[parallel]\npp = 2\nschedule = \"file:no/such.csv\"", 2, "run.toml:3",
       "schedule file:no/such.csv: there is no file no/such.csv", "leave schedule out, or name a CSV file"},
      {"[parallel]\npost_validation = \"on\"", 2, "run.toml:2", "post_validation = \"on\" is of a pipeline, but pp = 1",
       "use pp 2, or leave post_validation out"},
      {"[parallel]\npp = 2\npost_validation = \"on\"\n[train]\nnonfinite = \"skip\"", 2, "run.toml:3",
       "post_validation = \"on\" beside train.nonfinite: nonfinite = \"skip\" wants to know of a step before the next one begins",
       "use post_validation auto or off"},
      {"[parallel]\npp = 2\nzero = 3\npost_validation = \"on\"", 4, "run.toml:4", "post_validation = \"on\" beside parallel.zero",
       "use post_validation auto or off"},
      {"[parallel]\nschedule = \"gpipe\"", 2, "run.toml:2", "schedule gpipe is of a pipeline, but pp = 1",
       "use pp 2, or leave schedule out"},
      {"[parallel]\nvirtual_stages = 2", 2, "run.toml:2", "virtual_stages(2) are of a pipeline rank, but pp = 1",
       "leave virtual_stages out"},
      {"[parallel]\nlayers_per_stage = [12]", 2, "run.toml:2", "layers_per_stage = \"12\" cuts a pipeline, but pp = 1",
       "leave layers_per_stage out"},
  };
  for (const Refused& refused : all) expect_refused_alone(refused);
  for (const char* fits : {"schedule = \"1f1b\"", "virtual_stages = 1", "pp = 2\nschedule = \"zb-h1\"\nvirtual_stages = 1",
                           "pp = 2\nschedule = \"zb-v\"\nvirtual_stages = 2"})
    EXPECT_EQ(layout_refusal(std::string("[parallel]\n") + fits, 2), "accepted") << fits;
}

TEST(CheckPipeline, ABatchThatFitsSuitsTheScheduleToo) {
  RunConfig config = read("[parallel]\npp = 4\nschedule = \"interleaved\"");
  config.train.micro_batch = 2;
  config.train.global_batch = 19;
  const std::vector<LayoutProblem> problems = layout_problems(config, 8);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].what, "global_batch(19) is not a multiple of dp(2) * micro_batch(2) = 4");
  EXPECT_EQ(problems[0].way_out(), "use global_batch 16 or 32");
}

TEST(CheckPipeline, AllProblemsAtOnce) {
  const std::string message = layout_refusal(
      "[model]\nlayers = 4\nheads = 4\n[parallel]\npp = 8\ntp = 3\nvirtual_stages = 2\nreduce_precision = \"bf16\"", 16);
  EXPECT_THAT(message, HasSubstr("(5 problems, nothing was started)"));
  for (const char* part : {"tp(3) x pp(8) x dp(1) = 24, but 16 ranks", "model.heads(4) % tp(3) = 1", "schedule 1f1b has one stage of a rank",
                           "pp(8) x virtual_stages(2) = 16 stages", "reduce_precision bf16 with zero 0"})
    EXPECT_THAT(message, HasSubstr(part));
}

}  // namespace
}  // namespace lockstep::config
