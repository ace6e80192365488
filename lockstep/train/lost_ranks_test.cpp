// A rank that is killed or stopped at each place of a run. This program starts copies of itself as the ranks, each a
// Trainer as `lockstep train` has it; the one to be broken sends itself the signal exactly there.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/data/token_file.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/local_launcher.h"
#include "lockstep/program/job.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {
namespace {

using program::Action;
using program::ActionKind;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kRanks = 3;
constexpr int kVictim = 1;

// `layout`: "zero = 3" or "pp = 3".
config::LoadedConfig configuration(const std::string& folder, const std::string& steps, const std::string& layout) {
  return config::load_config_text(cat("[run]\ndir = \"", folder, "/run\"\n[model]\npreset = \"gpt2-test\"\nvocab_size = 512\n",
                                      "[data]\ntrain = \"", folder, "/tokens\"\n[train]\nsteps = ", steps,
                                      "\nseq_len = 16\nglobal_batch = 6\nmicro_batch = 1\nthreads = 1\n",
                                      "[optimizer]\nschedule = \"constant\"\nwarmup_steps = 0\n",
                                      "[parallel]\nbucket_mib = 0.1\n", layout, "\n[checkpoint]\nevery = 2\n"),
                                  "test");
}

// Where the victim breaks: "F" and so on, an action of the second step; or the site of a collective, at its second call,
// or at the first one of its name where it has only one.
class Break {
 public:
  Break(std::string place, int signal) : place_(std::move(place)), signal_(signal) {}

  void at_action(const Action& action) {
    if (action.kind == ActionKind::kStep) ++steps_;
    const int64_t step = action.kind == ActionKind::kStep ? steps_ : steps_ + 1;
    if (step == 2 && program::action_name(action.kind) == place_) raise(signal_);
  }
  void in_call(const comm::Progress& progress) {
    if (!progress.inside || progress.call.find(cat("'", place_, "'")) == std::string::npos) return;
    if (++calls_ == (place_.starts_with("checkpoint") ? 1 : 2)) raise(signal_);
  }

 private:
  std::string place_;
  int signal_;
  int64_t steps_ = 0;
  std::atomic<int> calls_ = 0;
};

// Arguments: folder, steps, place, signal, seconds until a rank that does not come is lost, layout.
int run_rank(const std::vector<std::string>& given) {
  at::set_num_threads(1);
  std::vector<std::string> arguments = given;
  const launch::Identity me = launch::take_identity(arguments);
  const auto loaded = configuration(arguments.at(0), arguments.at(1), arguments.at(5));
  const program::Layout layout = program::layout_of(loaded, me.world_size);
  const auto fault = std::make_shared<Break>(arguments.at(2), std::stoi(arguments.at(3)));
  const bool victim = me.rank == kVictim && arguments.at(2) != "nowhere";
  const auto region = std::make_shared<const launch::SharedRegion>(launch::SharedRegion::from_descriptor(me.region_fd));
  comm::SharedMemoryOptions options{.deadline = std::chrono::seconds(std::stoi(arguments.at(4)))};
  if (victim) options.watch = [fault](const comm::Progress& progress) { fault->in_call(progress); };
  comm::SharedMemoryWorld world(region, me.rank, me.world_size, options);
  try {
    TrainJob job{.loaded = loaded, .layout = layout, .world = world, .second_signal_ends = false};
    if (victim) job.before_action = [fault](const Action& action, engine::ParameterStore&) { fault->at_action(action); };
    Trainer trainer(job);
    return static_cast<int>(trainer.run());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    world.abort(error.what());
    return static_cast<int>(error.exit_code());
  }
}

struct Outcome {
  int code = 0;
  std::string text;  // what a person sees
};

Outcome launch_ranks(const std::vector<std::string>& arguments) {
  const int report = memfd_create("report", MFD_CLOEXEC);
  const int terminal = dup(STDERR_FILENO);
  dup2(report, STDERR_FILENO);
  const int code = launch::launch_local(
      {.ranks = kRanks, .arguments = arguments, .grace = std::chrono::seconds(4), .error_fd = report});
  dup2(terminal, STDERR_FILENO);
  close(terminal);
  std::string text(static_cast<size_t>(lseek(report, 0, SEEK_END)), '\0');
  EXPECT_EQ(pread(report, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  close(report);
  return {code, text};
}

struct Fault {
  std::string place;
  int signal = SIGKILL;
  std::string layout = "zero = 0";
  // The run has a checkpoint before it happens.
  bool later() const { return layout != "zero = 0" || place == "checkpoint load"; }
};

class LostRanks : public ::testing::TestWithParam<Fault> {
 protected:
  static void SetUpTestSuite() {
    fs::remove_all(root());
    for (const char* layout : {"zero = 0", "zero = 3", "pp = 3"}) {
      prepare(whole(layout));
      const Outcome outcome = run(whole(layout), 4, {.place = "nowhere", .layout = layout}, 600);
      ASSERT_EQ(outcome.code, 0) << outcome.text;
    }
  }
  static void TearDownTestSuite() { fs::remove_all(root()); }

  static fs::path root() { return fs::temp_directory_path() / cat("lockstep-lost-ranks-", getpid()); }
  static fs::path whole(const std::string& layout) { return root() / cat("whole-", join(split(layout, ' '), "-")); }
  static void prepare(const fs::path& folder) {
    fs::create_directories(folder);
    data::TokenFileWriter writer(folder / "tokens", 512);
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 4000; ++i) ids.push_back(i * i % 509);
    writer.add_document(ids);
    writer.finish();
  }
  static Outcome run(const fs::path& folder, int steps, const Fault& fault, int seconds) {
    return launch_ranks({folder.string(), cat(steps), fault.place, cat(fault.signal), cat(seconds), fault.layout});
  }
  // Content of the tensors of the last step.
  static std::map<std::string, std::string> tensors(const fs::path& folder) {
    std::map<std::string, std::string> files;
    const fs::path step = folder / "run" / "checkpoints" / checkpoint::step_name(4);
    for (const auto& entry : fs::recursive_directory_iterator(step))
      if (entry.path().extension() == ".safetensors") files[entry.path().filename().string()] += read_file(entry.path().string());
    return files;
  }
};

std::vector<std::string> shared_memory_files() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm"))
    if (entry.path().filename().string().find("lockstep") != std::string::npos) names.push_back(entry.path());
  return names;
}

TEST_P(LostRanks, AreNamedNothingStaysAndTheRunGoesOn) {
  const Fault fault = GetParam(), nowhere{.place = "nowhere", .layout = fault.layout};
  const fs::path folder = root() / cat(join(split(fault.place, ' '), "-"), "-", fault.signal, "-", join(split(fault.layout, ' '), "-"));
  prepare(folder);
  if (fault.later()) {
    ASSERT_EQ(run(folder, 2, nowhere, 600).code, 0);
  }
  // Who is killed is noticed at once, long before this deadline; who is stopped only by it.
  const Outcome outcome = run(folder, 4, fault, fault.signal == SIGSTOP ? 8 : 600);
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost)) << outcome.text;
  if (fault.signal == SIGKILL) {
    EXPECT_THAT(outcome.text, HasSubstr("rank 1 was ended by signal 9 (Killed)\n"));
  }
  // Rank, collective and number in one line.
  EXPECT_THAT(outcome.text, ContainsRegex("error LS300[23]: rank [0-9].*[a-z_]+ #[0-9]+ '[^']+'")) << fault.place;
  EXPECT_THAT(outcome.text, ContainsRegex("rank 1 (\\(process [0-9]+\\) died|never entered|does not go on with|has closed)"));
  int status = 0;
  EXPECT_EQ(waitpid(-1, &status, WNOHANG), -1) << "a process is left";
  EXPECT_THAT(shared_memory_files(), ::testing::IsEmpty());

  if (fault.later()) {
    const checkpoint::Latest latest = checkpoint::find_latest(folder / "run" / "checkpoints");
    EXPECT_EQ(latest.step, 2);
    EXPECT_THAT(latest.skipped, ::testing::IsEmpty());
    EXPECT_THAT(checkpoint::verify_sums(*latest.path, checkpoint::read_manifest(*latest.path)), ::testing::IsEmpty());
  }

  const Outcome again = run(folder, 4, nowhere, 600);
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_TRUE(tensors(folder) == tensors(whole(fault.layout))) << "another outcome than that of the unbroken run";
}

std::vector<Fault> faults() {
  std::vector<Fault> all;
  for (const char* place : {"F", "B", "REDUCE_GRAD", "reduce_grad bucket 0", "loss", "STEP", "checkpoint prepare",
                            "checkpoint write", "checkpoint publish", "checkpoint load"})
    all.push_back({.place = place});
  for (const char* place : {"F", "reduce_grad bucket 0", "STEP", "checkpoint write", "checkpoint load"})
    all.push_back({.place = place, .signal = SIGSTOP});
  // While a layer's parameters are being gathered, are there and used, and are dropped.
  for (const char* place : {"UNSHARD", "unshard blocks.1", "F", "B", "RESHARD", "SHARD_GRAD", "reduce_grad bucket 0", "NORM"})
    all.push_back({.place = place, .layout = "zero = 3"});
  for (const char* place : {"unshard blocks.1", "B"}) all.push_back({.place = place, .signal = SIGSTOP, .layout = "zero = 3"});
  // In a pipeline of three, with neighbours on both sides.
  for (const char* place : {"F", "send_f stage 1", "recv_b stage 1", "SEND_B", "LOSS"})
    all.push_back({.place = place, .layout = "pp = 3"});
  all.push_back({.place = "B", .signal = SIGSTOP, .layout = "pp = 3"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Everywhere, LostRanks, ::testing::ValuesIn(faults()), [](const auto& info) {
  std::string name = cat(info.param.place, info.param.signal == SIGKILL ? "_killed" : "_stopped",
                         info.param.layout == "zero = 0" ? "" : cat("_", info.param.layout));
  for (char& c : name) c = c == ' ' || c == '.' || c == '=' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace lockstep::train

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  for (const std::string& argument : arguments)
    if (argument == "--rank") return lockstep::train::run_rank(arguments);
  testing::InitGoogleTest(&count, values);
  return RUN_ALL_TESTS();
}
