// A rank that is killed or stopped at each place of a run. This program starts copies of itself as the ranks, each a
// Trainer as `lockstep train` has it; the one to be broken sends itself the signal exactly there.
// A program of its own: it is the program that its ranks run.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <set>

#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/data/token_file.h"
#include "lockstep/launch/identity.h"
#include "lockstep/launch/local_launcher.h"
#include "lockstep/program/passes/job.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {
namespace {

using program::Action;
using program::ActionKind;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

// `layout`: "zero = 3" or "pp = 3".
config::LoadedConfig configuration(const std::string& folder, const std::string& steps, const std::string& layout) {
  return config::load_config_text(cat("[run]\ndir = \"", folder, "/run\"\n[model]\npreset = \"gpt2-test\"\nlayers = ", layout == "pp = 4" ? 4 : 2, "\nvocab_size = 512\n",
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
    if (!progress.inside || progress.call.text().find(cat("'", place_, "'")) == std::string::npos) return;
    if (++calls_ == (place_.starts_with("checkpoint") ? 1 : 2)) raise(signal_);
  }

 private:
  std::string place_;
  int signal_;
  int64_t steps_ = 0;
  std::atomic<int> calls_ = 0;
};

// Arguments: folder, steps, place, signal, seconds until a rank that does not come is lost, layout, the rank that breaks.
int run_rank(const std::vector<std::string>& given) {
  at::set_num_threads(1);
  std::vector<std::string> arguments = given;
  const launch::Identity me = launch::take_identity(arguments);
  auto loaded = configuration(arguments.at(0), arguments.at(1), arguments.at(5));
  const program::Layout layout = program::layout_of(loaded, me.world_size);
  const auto fault = std::make_shared<Break>(arguments.at(2), std::stoi(arguments.at(3)));
  const bool victim = me.rank == std::stoi(arguments.at(6)) && arguments.at(2) != "nowhere";
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
  int code = -1;
  std::string text{};  // what a person sees
  std::string logs{};  // what ranks above 0 say
};

constexpr std::chrono::milliseconds kGrace{2000};
constexpr int kStopDeadline = 8;  // seconds until a stopped rank is lost: more than ranks are apart on a loaded machine
constexpr size_t kAtOnce = 4;     // runs: one with a stopped rank mostly waits

Outcome launch_ranks(int ranks, const std::vector<std::string>& arguments, const fs::path& logs) {
  const int report = memfd_create("report", MFD_CLOEXEC);
  dup2(report, STDERR_FILENO);
  Outcome outcome;
  fs::create_directories(logs);
  outcome.code = launch::launch_local(
      {.ranks = ranks, .arguments = arguments, .log_dir = logs, .grace = kGrace, .error_fd = report});
  for (const auto& entry : fs::directory_iterator(logs)) outcome.logs += read_file(entry.path());
  outcome.text.resize(static_cast<size_t>(lseek(report, 0, SEEK_END)));
  if (pread(report, outcome.text.data(), outcome.text.size(), 0) < 0) outcome.text = "nothing can be read";
  close(report);
  if (waitpid(-1, nullptr, WNOHANG) != -1) outcome.text += "\na process is left";
  return outcome;
}

struct Fault {
  std::string place;
  int signal = SIGKILL;
  std::string layout = "zero = 0";
  int ranks = 3;
  int victim = 1;
  bool again = false;  // the run is started once more: where it leaves something of its own on the disk, or for its layout
  // The run has a checkpoint before it happens.
  bool later() const { return ranks == 3 && (layout != "zero = 0" || place == "checkpoint load"); }
  std::string name() const {
    std::string text =
        cat(place, signal == SIGKILL ? "_killed" : "_stopped", layout == "zero = 0" ? "" : cat("_", layout));
    for (char& c : text) c = c == ' ' || c == '.' || c == '=' ? '_' : c;
    return text;
  }
};
enum class Which { kFew, kOthers, kAll };
std::vector<Fault> faults(Which which = Which::kAll);

// Everything below root() is of this start of the test: NAME/ for a run; NAME.code, .text and .logs for its outcome.
fs::path root() {
  static const fs::path path = fs::temp_directory_path() / cat("lockstep-lost-ranks-", getpid());
  return path;
}
Fault nowhere(const std::string& layout) { return {.place = "nowhere", .layout = layout}; }
std::string kind_of(const char* kind, const std::string& layout) { return cat(kind, "-", join(split(layout, ' '), "-")); }

void write_tokens(const fs::path& folder) {
  fs::create_directories(folder);
  data::TokenFileWriter writer(folder / "tokens", 512);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 4000; ++i) ids.push_back(i * i % 509);
  writer.add_document(ids);
  writer.finish();
}

void run(const std::string& name, int steps, const Fault& fault, int seconds, const char* again = "") {
  const Outcome outcome = launch_ranks(fault.ranks,
                                       {(root() / name).string(), cat(steps), fault.place, cat(fault.signal), cat(seconds),
                                        fault.layout, cat(fault.victim)},
                                       root() / cat(name, again, "-logs"));
  write_file(root() / cat(name, again, ".logs"), outcome.logs);
  write_file(root() / cat(name, again, ".text"), outcome.text);
  write_file(root() / cat(name, again, ".code"), cat(outcome.code));
}

Outcome outcome_of(const std::string& name) {
  if (!fs::exists(root() / cat(name, ".code"))) return {.text = "there was no such run"};
  return {std::stoi(read_file(root() / cat(name, ".code"))), read_file(root() / cat(name, ".text")),
          read_file(root() / cat(name, ".logs"))};
}

// What the fault left on the disk, in words: "step 2" where all is well.
std::string left_in(const std::string& name) {
  const checkpoint::Latest latest = checkpoint::find_latest(root() / name / "run" / "checkpoints");
  std::string text = cat("step ", latest.step);
  for (const checkpoint::StepFolder& folder : latest.skipped) text += cat(", not whole: ", folder.path.string());
  if (!latest.path) return text;
  for (const std::string& line : checkpoint::verify_sums(*latest.path, checkpoint::read_manifest(*latest.path)))
    text += cat("\n", line);
  return text;
}

// A fault from its beginning to its end, in a process of its own.
void break_and_go_on(const Fault& fault) {
  const std::string name = fault.name();
  // Who is killed is noticed at once, long before this deadline; who is stopped only by it.
  run(name, 4, fault, fault.signal == SIGSTOP ? kStopDeadline : 600);
  write_file(root() / cat(name, ".left"), left_in(name));
  if (fault.again) run(name, 4, nowhere(fault.layout), 600, "-again");
}

// Several at a time, each in a process of its own: launch_local needs one with a single thread.
class Processes {
 public:
  void start(const std::function<void()>& act) {
    while (running_.size() >= kAtOnce) wait_for_one();
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child != 0) {
      running_.insert(child);
      return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      act();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    _exit(0);
  }
  void wait() {
    while (!running_.empty()) wait_for_one();
  }

 private:
  void wait_for_one() { running_.erase(waitpid(-1, nullptr, 0)); }
  std::set<pid_t> running_;
};

class LostRanks : public ::testing::TestWithParam<Fault> {
 protected:
  // Makes the runs of all tests, since most of their time is waiting; the tests look at what came of them.
  static void SetUpTestSuite() {
    fs::create_directories(root());
    Processes processes;
    std::set<std::string> layouts;
    for (const Fault& fault : chosen())
      if (fault.later() || fault.again) layouts.insert(fault.layout);
    for (const std::string& layout : layouts)
      for (const auto& [kind, steps] : {std::pair{"half", 2}, {"whole", 4}}) {
        write_tokens(root() / kind_of(kind, layout));
        processes.start([=, name = kind_of(kind, layout), steps = steps] { run(name, steps, nowhere(layout), 600); });
      }
    processes.wait();
    for (const Fault& fault : chosen()) {
      write_tokens(root() / fault.name());
      if (fault.later()) {
        fs::create_directories(root() / fault.name() / "run");
        fs::copy(root() / kind_of("half", fault.layout) / "run" / "checkpoints",
                 root() / fault.name() / "run" / "checkpoints", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      }
      processes.start([=] { break_and_go_on(fault); });
    }
    processes.wait();
  }
  // Those whose tests are to run (--gtest_filter).
  static std::vector<Fault> chosen() {
    std::vector<Fault> all = faults();
    const ::testing::TestSuite& suite = *::testing::UnitTest::GetInstance()->current_test_suite();
    std::erase_if(all, [&](const Fault& fault) {
      for (int test = 0; test < suite.total_test_count(); ++test) {
        const ::testing::TestInfo& info = *suite.GetTestInfo(test);
        if (info.should_run() && std::string(info.name()).ends_with("/" + fault.name())) return false;
      }
      return true;
    });
    return all;
  }
  static void TearDownTestSuite() { fs::remove_all(root()); }

  // Content of the tensors of the last step.
  static std::map<std::string, std::string> tensors(const std::string& name) {
    std::map<std::string, std::string> files;
    const fs::path step = root() / name / "run" / "checkpoints" / checkpoint::step_name(4);
    for (const auto& entry : fs::recursive_directory_iterator(step))
      if (entry.path().extension() == ".safetensors") files[entry.path().filename().string()] += read_file(entry.path());
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
  const Fault fault = GetParam();
  if (fault.later() || fault.again) {
    const Outcome whole = outcome_of(kind_of("whole", fault.layout));
    ASSERT_EQ(whole.code, 0) << whole.text;
  }
  const Outcome outcome = outcome_of(fault.name());
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeerLost)) << outcome.text;
  if (fault.signal == SIGKILL) {
    EXPECT_THAT(outcome.text, HasSubstr(cat("rank ", fault.victim, " was ended by signal 9 (Killed)\n")));
  }
  // Rank, collective and number in one line.
  EXPECT_THAT(outcome.text, ContainsRegex("error LS300[23]: rank [0-9].*[a-z_]+ #[0-9]+ '[^']+'")) << fault.place;
  EXPECT_THAT(outcome.text, ContainsRegex(cat("rank ", fault.victim,
                                              " (\\(process [0-9]+\\) died|never entered|does not go on with|has closed|keeps rank)")));
  // Nobody blames another, however far from it.
  const std::string all = outcome.text + outcome.logs;
  for (size_t at = 0; (at = all.find("LS3002: ", at)) != std::string::npos; ++at)
    EXPECT_THAT(all.substr(at), ::testing::StartsWith(cat("LS3002: rank ", fault.victim, " ")));
  EXPECT_THAT(outcome.text, Not(HasSubstr("a process is left")));
  EXPECT_THAT(shared_memory_files(), ::testing::IsEmpty());
  if (fault.later()) {
    EXPECT_EQ(read_file(root() / cat(fault.name(), ".left")), "step 2");
  }
  if (!fault.again) return;
  const Outcome again = outcome_of(cat(fault.name(), "-again"));
  EXPECT_EQ(again.code, 0) << again.text;
  EXPECT_TRUE(tensors(fault.name()) == tensors(kind_of("whole", fault.layout))) << "another outcome than that of the unbroken run";
}

std::vector<Fault> faults(Which which) {
  std::vector<Fault> all;
  for (const char* place : {"F", "reduce_grad bucket 0", "STEP", "checkpoint write", "checkpoint load"})
    all.push_back({.place = place, .signal = SIGSTOP});
  for (const char* place : {"F", "B", "REDUCE_GRAD", "reduce_grad bucket 0", "loss", "STEP", "checkpoint prepare",
                            "checkpoint write", "checkpoint publish", "checkpoint load"})
    all.push_back({.place = place});
  // While a layer's parameters are being gathered, are there and used, and are dropped.
  for (const char* place : {"unshard blocks.1", "B"}) all.push_back({.place = place, .signal = SIGSTOP, .layout = "zero = 3"});
  for (const char* place : {"UNSHARD", "unshard blocks.1", "F", "B", "RESHARD", "SHARD_GRAD", "reduce_grad bucket 0", "NORM"})
    all.push_back({.place = place, .layout = "zero = 3"});
  // In a pipeline of three, with neighbours on both sides.
  all.push_back({.place = "B", .signal = SIGSTOP, .layout = "pp = 3"});
  for (const char* place : {"F", "send_f stage 1", "recv_b stage 1", "SEND_B", "LOSS"})
    all.push_back({.place = place, .layout = "pp = 3"});
  // Ranks that wait for neighbours of neighbours; a stage in two copies.
  all.push_back({.place = "B", .signal = SIGSTOP, .layout = "pp = 4", .ranks = 4, .victim = 3});
  all.push_back({.place = "B", .signal = SIGSTOP, .layout = "pp = 2", .ranks = 4, .victim = 2});
  for (Fault& fault : all)
    fault.again = fault.place.starts_with("checkpoint") || fault.place == "F" || fault.place == "NORM";
  // One rank killed and one stopped, within a step, in a collective of each layout and while a checkpoint is written.
  const std::set<std::string> few = {"F_stopped", "reduce_grad_bucket_0_killed", "checkpoint_write_killed",
                                     "unshard_blocks_1_killed_zero___3", "send_f_stage_1_killed_pp___3"};
  if (which != Which::kAll)
    std::erase_if(all, [&](const Fault& fault) { return few.contains(fault.name()) != (which == Which::kFew); });
  return all;
}

const auto name_of = [](const auto& info) { return info.param.name(); };
INSTANTIATE_TEST_SUITE_P(SomePlaces, LostRanks, ::testing::ValuesIn(faults(Which::kFew)), name_of);
INSTANTIATE_TEST_SUITE_P(LongAllOthers, LostRanks, ::testing::ValuesIn(faults(Which::kOthers)), name_of);

TEST(LostRanksFew, AreFive) { EXPECT_EQ(faults(Which::kFew).size(), 5u); }

}  // namespace
}  // namespace lockstep::train

int main(int count, char** values) {
  const std::vector<std::string> arguments(values + 1, values + count);
  for (const std::string& argument : arguments)
    if (argument == "--rank") return lockstep::train::run_rank(arguments);
  testing::InitGoogleTest(&count, values);
  return RUN_ALL_TESTS();
}
