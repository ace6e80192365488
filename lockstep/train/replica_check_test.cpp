// A replica that drifts ends the run on all ranks before anything of it is saved. Ranks are forked Trainers, of which
// one has a bit flipped between two steps.
#include "lockstep/train/replica_check.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/data/token_file.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/train/trainer.h"
#include "support/fork_ranks.h"

namespace lockstep::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using program::Action;
using program::ActionKind;

struct Drift {
  std::string name;
  std::string check;           // [train] check_replicas_every
  std::string save;            // [checkpoint] every
  int64_t behind = 0;          // the bit is flipped when so many steps are done; 0: never
  int64_t seen = 0;            // at this step; 0: the run ends well
  std::vector<int64_t> saved;  // steps
  std::string layout = "dp = 2";
};

constexpr int kSteps = 6;

class DriftingRun : public ::testing::TestWithParam<Drift> {
 protected:
  void SetUp() override {
    fs::create_directories(folder_);
    data::TokenFileWriter writer(folder_ / "tokens", 512);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 2000; ++i) ids.push_back(i * i % 509);
    writer.add_document(ids);
    writer.finish();
  }
  void TearDown() override { fs::remove_all(folder_); }

  config::LoadedConfig configuration() const {
    return config::load_config_text(
        cat("[run]\ndir = \"", (folder_ / "run").string(), "\"\n[model]\npreset = \"gpt2-test\"\nvocab_size = 512\n[data]\ntrain = \"",
            (folder_ / "tokens").string(), "\"\n[train]\nsteps = ", kSteps,
            "\nseq_len = 16\nglobal_batch = 4\nmicro_batch = 1\nthreads = 1\ncheck_replicas_every = ", GetParam().check,
            "\n[parallel]\n", GetParam().layout, "\n[checkpoint]\nevery = ", GetParam().save, "\nkeep = 0\n"),
        "test");
  }

  // Exit code of a rank; what it throws goes to a file.
  int run_rank(comm::World& world) const {
    at::set_num_threads(1);
    auto loaded = configuration();
    const program::Layout layout = program::layout_of(loaded, world.size());
    TrainJob job{.loaded = loaded, .layout = layout, .world = world, .second_signal_ends = false};
    int64_t steps = 0;
    bool flipped = GetParam().behind == 0 || world.rank() != 1;
    job.before_action = [&](const Action& action, engine::ParameterStore& store) {
      if (!flipped && steps == GetParam().behind) {
        for (const engine::StateTensor& tensor : store.state())
          if (tensor.name == "blocks.1.mlp_norm.weight" && tensor.kind == engine::StateKind{"exp_avg"})
            static_cast<uint8_t*>(tensor.local.data_ptr())[2] ^= 0x40;  // a lower one would be rounded away
        flipped = true;
      }
      if (action.kind == ActionKind::kStep) ++steps;
    };
    try {
      return static_cast<int>(Trainer(job).run());
    } catch (const Error& error) {
      write_file(folder_ / cat("error-", world.rank()), error.what());
      world.abort(error.what());
      return static_cast<int>(error.exit_code());
    }
  }

  const fs::path folder_ = fs::temp_directory_path() / cat("lockstep-drift-", getpid(), "-", GetParam().name);
};

TEST_P(DriftingRun, EndsBeforeItIsSaved) {
  const launch::SharedRegion region = launch::SharedRegion::memfd(launch::region_bytes(2));
  std::vector<int> codes;
  for (const pid_t child : testing::fork_ranks(2, region, [this](comm::World& world) { return run_rank(world); }))
    codes.push_back(testing::code_of(child));
  const int code = GetParam().seen > 0 ? static_cast<int>(ExitCode::kMismatch) : 0;
  EXPECT_THAT(codes, ElementsAre(code, code));
  for (const int rank : {0, 1}) {
    if (GetParam().seen == 0) continue;
    const std::string text = read_file(folder_ / cat("error-", rank));
    EXPECT_THAT(text, HasSubstr(cat("error LS5002: ranks that must hold the same have drifted apart, seen at step ", GetParam().seen)));
    EXPECT_THAT(text, HasSubstr("first moment blocks.1.mlp_norm.weight: rank 1 differs from rank 0"));
  }
  std::vector<int64_t> saved;
  for (const checkpoint::StepFolder& step : checkpoint::list_steps(folder_ / "run" / "checkpoints")) saved.push_back(step.step);
  std::sort(saved.begin(), saved.end());
  EXPECT_EQ(saved, GetParam().saved);
}

TEST(ReplicaPolicy, ComparesAStepOnceButForWhatIsOnDisk) {
  std::vector<std::pair<int64_t, bool>> compared;  // step, with what is on disk
  const auto record = [&](const RunPosition& at, bool with_disk) { compared.emplace_back(at.step, with_disk); };
  for (const bool on_disk : {false, true}) {
    compared.clear();
    ReplicaPolicy policy(2, on_disk, record);
    for (int64_t step = 1; step <= 4; ++step) {
      const RunPosition at{.step = step};
      EXPECT_EQ(policy.due(step), step % 2 == 0);
      policy.settled(at);
      if (step >= 3) policy.before_save(at);
      if (step == 4) policy.settled(at);
    }
    std::vector<std::pair<int64_t, bool>> expected = {{2, false}, {3, true}, {4, false}};
    if (on_disk) expected.emplace_back(4, true);
    EXPECT_EQ(compared, expected);
  }
  EXPECT_FALSE(ReplicaPolicy(0, false, record).due(100));
}

std::vector<Drift> drifts() {
  return {
      {.name = "none", .check = "1", .save = "2", .saved = {2, 4, 6}},
      {.name = "seen_before_a_save", .check = "0", .save = "2", .behind = 2, .seen = 4, .saved = {2}},
      {.name = "seen_before_the_last_save", .check = "0", .save = "0", .behind = 1, .seen = kSteps, .saved = {}},
      {.name = "seen_in_between", .check = "3", .save = "5", .behind = 1, .seen = 3, .saved = {}},
      {.name = "over_tp", .check = "2", .save = "0", .behind = 3, .seen = 4, .saved = {}, .layout = "tp = 2"},
  };
}

INSTANTIATE_TEST_SUITE_P(, DriftingRun, ::testing::ValuesIn(drifts()),
                         [](const ::testing::TestParamInfo<Drift>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::train
