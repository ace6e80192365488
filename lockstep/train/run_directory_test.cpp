#include "lockstep/train/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "support/folders.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

RunDirectory fresh(const std::string& name) { return RunDirectory(support::fresh_place("run-" + name)); }

RunDirectory::Content content(int layers) {
  return {.config_text = "steps = 10  # run.toml:3\n",
          .model = {{"layers", layers}, {"hidden", 64}},
          .environment = describe_environment({{"launcher", "torchrun"}, {"lockstep", "0.1.0"}})};
}

TEST(RunDirectory, HasItsFilesAndFolders) {
  const RunDirectory run = fresh("layout");
  run.open(content(2));
  EXPECT_EQ(read_file(run.root() / "config.resolved.toml"), content(2).config_text);
  const Json environment = read_json(run.root() / "env.json");
  for (const char* key : {"host", "cores", "torch", "compiler", "launcher", "lockstep", "started"})
    EXPECT_TRUE(environment.contains(key)) << key;
  for (const char* folder : {"logs", "checkpoints", "tb"}) EXPECT_TRUE(fs::is_directory(run.root() / folder)) << folder;
  EXPECT_EQ(run.log(3), run.root() / "logs/rank-0003.log");
  EXPECT_FALSE(run.is_done());
  run.finish(10, 2.5);
  EXPECT_TRUE(run.is_done());
  EXPECT_EQ(read_json(run.done())["train/loss"], 2.5);
}

TEST(RunDirectory, GoesOnWithTheSameModelOnly) {
  const RunDirectory run = fresh("same");
  run.open(content(2));
  run.finish(10, 2.5);
  run.open(content(2));
  EXPECT_FALSE(run.is_done());
  try {
    run.open(content(3));
    FAIL() << "accepted another model";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.message().code, "LS1309");
    EXPECT_THAT(error.what(), HasSubstr("layers   there 2   config 3"));
  }
  EXPECT_EQ(read_json(run.environment())["model"]["layers"], 2);
}

}  // namespace
}  // namespace lockstep::train
