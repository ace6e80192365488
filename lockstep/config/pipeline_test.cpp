// The keys of pipelines, and what is refused of them together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/config/check.h"
#include "lockstep/config/fields.h"
#include "lockstep/config/load.h"

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RunConfig read(std::string_view text) { return load_config_text(text, "run.toml").config; }

std::string refusal(std::string_view text) {
  try {
    load_config_text(text, "run.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PipelineConfig, ReadsTheKeys) {
  const RunConfig config = read("[parallel]\npp = 4\nschedule = \"interleaved\"\nvirtual_stages = 2\n"
                                "layers_per_stage = [3, 4, 4, 3, 1, 1, 1, 1]\n");
  EXPECT_EQ(config.parallel.pp, 4);
  EXPECT_EQ(config.parallel.schedule, "interleaved");
  EXPECT_EQ(config.parallel.virtual_stages, 2);
  EXPECT_THAT(config.parallel.layers_per_stage.list, ElementsAre(3, 4, 4, 3, 1, 1, 1, 1));
  const RunConfig plain = read("");
  EXPECT_EQ(plain.parallel.pp, 1);
  EXPECT_EQ(plain.parallel.schedule, "1f1b");
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
  for (const std::string_view name : kPipelineSchedules)
    EXPECT_EQ(read("[parallel]\nschedule = \"" + std::string(name) + "\"").parallel.schedule, name);
  EXPECT_EQ(read("[parallel]\nschedule = \"file:grid.csv\"").parallel.schedule, "file:grid.csv");
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
  EXPECT_EQ(kPipelineSchedules.at(static_cast<size_t>(plain.schedule)), "1f1b");
  EXPECT_EQ(plain.virtual_stages, 1);
  EXPECT_THAT(plain.blocks, IsEmpty());
  for (const char* two : {"interleaved", "zb-v", "dualpipe-v"})
    EXPECT_EQ(pipeline_choice(read(std::string("[parallel]\npp = 2\nschedule = \"") + two + "\"")).virtual_stages, 2) << two;
  const PipelineChoice all = pipeline_choice(
      read("[parallel]\npp = 2\nschedule = \"interleaved\"\nvirtual_stages = 3\nlayers_per_stage = \"1*6\""));
  EXPECT_EQ(all.virtual_stages, 3);
  EXPECT_THAT(all.blocks, ElementsAre(1, 1, 1, 1, 1, 1));
  const PipelineChoice file = pipeline_choice(read("[parallel]\npp = 2\nschedule = \"file:a/b.csv\""));
  EXPECT_EQ(file.schedule, static_cast<int>(kPipelineSchedules.size()));
  EXPECT_EQ(file.file, "a/b.csv");
}

}  // namespace
}  // namespace lockstep::config
