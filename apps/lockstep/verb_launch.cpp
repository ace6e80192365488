// `lockstep launch --print SYSTEM`: a script or manifest that trains somewhere else.
#include <sys/random.h>

#include <algorithm>
#include <array>

#include "apps/lockstep/verbs.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/config/check.h"
#include "lockstep/launch/backend_choice.h"
#include "lockstep/launch/script.h"
#include "lockstep/plan/room.h"
#include "lockstep/program/passes/job.h"

namespace lockstep::apps {
namespace {

using launch::Launcher;
using launch::ScriptJob;

struct System {
  std::string_view name;
  Launcher launcher;  // that the ranks will find
  std::string (*print)(const ScriptJob&);
};

const std::vector<System>& systems() {
  static const std::vector<System> table = {{"slurm", Launcher::kSlurm, launch::slurm_script},
                                            {"k8s", Launcher::kPods, launch::kubernetes_manifest},
                                            {"mpirun", Launcher::kOpenMpi, launch::mpirun_script},
                                            {"torchrun", Launcher::kTorchrun, launch::torchrun_script}};
  return table;
}

const System& system_of(const CommandLine& command_line) {
  const std::string wanted = command_line.value("print");
  std::vector<std::string> names;
  for (const System& system : systems()) {
    if (system.name == wanted) return system;
    names.emplace_back(system.name);
  }
  const std::string all = join(names, ", ");
  if (!command_line.has("print"))
    reject("LS1003", "lockstep launch needs --print SYSTEM", cat("one of ", all));
  reject("LS1005", cat("--print ", wanted, ": one of ", all, " is needed"));
}

int nodes_of(const CommandLine& command_line, int ranks) {
  const int64_t nodes = command_line.integer("nodes", 1);
  if (nodes < 1 || nodes > ranks || ranks % nodes != 0)
    reject("LS1005", cat("--nodes ", nodes, " do not divide ", ranks, " ranks"),
           cat("-n is the number of all ranks: a multiple of --nodes"));
  return static_cast<int>(nodes);
}

std::optional<double> seconds_of(const CommandLine& command_line) {
  if (!command_line.has("time")) return std::nullopt;
  const std::string text = command_line.value("time");
  if (command_line.value("print") != "slurm")
    reject("LS1005", "--time: only Slurm has a time limit for a job",
           "lockstep train --stop-after saves and leaves after a time");
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds < 1)
    reject("LS1005", cat("--time ", text, ": a duration with a unit is needed"), "write 3h50m or 30min");
  return seconds;
}

// A secret for the ports that rank 0 opens to the network.
std::string new_token() {
  std::array<uint64_t, 2> bits{};
  if (getrandom(bits.data(), sizeof bits, 0) != sizeof bits)
    throw EnvironmentError({.code = "LS3110", .what = "the system gives no random numbers"});
  return hash_text(bits[0]) + hash_text(bits[1]);
}

void read_container(const CommandLine& command_line, ScriptJob& job) {
  const bool in_pods = command_line.value("print") == "k8s";
  for (const char* flag : {"image", "claim"}) {
    if (in_pods && command_line.value(flag).empty())
      reject("LS1003", cat("--print k8s needs --", flag),
             "--image NAME of a container with lockstep, --claim NAME of the volume that the job works in");
    if (!in_pods && command_line.has(flag))
      reject("LS1005", cat("--", flag, ": only --print k8s has containers"), cat("leave --", flag, " out"));
  }
  job.image = command_line.value("image");
  job.claim = command_line.value("claim");
}

std::vector<std::string> train_arguments(const CommandLine& command_line) {
  std::vector<std::string> words = {"train"};
  for (const auto& file : command_line.config_files()) words.push_back(file.string());
  for (const config::Override& set : command_line.overrides) words.push_back(cat("--", set.key, "=", set.value));
  return words;
}

}  // namespace

// Everything that can be judged here is judged: the configuration, the layout on so many ranks, the backend there. The
// data may be on another machine.
int verb_launch(const CommandLine& command_line) {
  const System& system = system_of(command_line);
  refuse_words(command_line);
  config::LoadedConfig loaded = load_config(command_line);
  const config::RunConfig& config = loaded.config;
  const int ranks = command_line.ranks.value_or(config::ranks_wanted(config));
  plan::check_room(config, program::layout_of(loaded, ranks), plan::limit_of(config));  // the host is another
  const int nodes = nodes_of(command_line, ranks);

  launch::Identity first{.world_size = ranks,
                         .local_size = ranks / nodes,
                         .source = cat("--print ", system.name),
                         .launcher = system.launcher};
  // On CPUs of several nodes Slurm's ranks are started by mpirun.
  if (system.launcher == Launcher::kSlurm && nodes > 1 && config.train.device == config::Device::kCpu)
    first.launcher = Launcher::kOpenMpi;
  const config::Backend backend = launch::choose_backend(first, config).backend;

  ScriptJob job{.program = system.name == "k8s" ? "lockstep" : std::filesystem::read_symlink("/proc/self/exe").string(),
                .arguments = train_arguments(command_line),
                .name = config.run.name,
                .run_directory = config.run.dir,
                .ranks = ranks,
                .nodes = nodes,
                .threads = config.train.threads,
                .gpus = config.train.device == config::Device::kCuda,
                .mpi = backend == config::Backend::kMpi,
                .seconds = seconds_of(command_line),
                .token = nodes > 1 && backend == config::Backend::kNccl ? new_token() : ""};
  read_container(command_line, job);
  print(system.print(job));
  return 0;
}

}  // namespace lockstep::apps
