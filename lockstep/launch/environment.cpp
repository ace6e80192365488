// What other launchers say in the environment about the place of this process.
#include <algorithm>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/identity.h"

namespace lockstep::launch {
namespace {

constexpr int kMaxHosts = 1 << 20;
constexpr int kFirstPort = 15000, kPorts = 17000;  // below those that the system gives to anybody (32768)
const char* const kWayOut =
    "start all ranks by one launcher, or unset what an earlier one has left behind (env -u NAME)";

[[noreturn]] void contradiction(const std::string& what) {
  throw ConfigError({.code = "LS1061", .what = what, .way_out = kWayOut});
}

std::optional<int> whole_number(const std::string& text) {
  const auto value = parse_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

// Reads variables and keeps account of what was read.
class Reader {
 public:
  Reader(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  std::optional<std::string> text(const std::string& name) {
    const auto found = environment_.find(name);
    if (found == environment_.end()) return std::nullopt;
    read_.push_back(cat(name, "=", found->second));
    return found->second;
  }
  std::optional<int> number(const std::string& name) {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int> number = whole_number(*value);
    if (!number) contradiction(cat(source(), ": ", name, " is not a whole number"));
    return number;
  }
  int needed(const std::string& name) {
    const std::optional<int> value = number(name);
    if (!value) contradiction(cat(source(), ": ", name, " is missing"));
    return *value;
  }
  std::string source() const { return cat(launcher_, ": ", join(read_, " ")); }

 private:
  const Environment& environment_;
  std::string launcher_;
  std::vector<std::string> read_;
};

// The row of one launcher: the names of its variables.
struct Names {
  std::string rank, size, local_rank, local_size;
};

Identity read_ranks(Reader& reader, const Names& names) {
  Identity identity;
  identity.rank = reader.needed(names.rank);
  identity.world_size = reader.needed(names.size);
  identity.local_rank = reader.number(names.local_rank).value_or(0);
  identity.local_size = reader.number(names.local_size).value_or(identity.world_size == 1 ? 1 : 0);
  return identity;
}

void read_master(Reader& reader, Identity& identity) {
  if (const auto address = reader.text("MASTER_ADDR")) identity.master_address = *address;
  if (const auto port = reader.number("MASTER_PORT")) identity.master_port = *port;
}

Identity checked(Identity identity, const Reader& reader) {
  identity.source = reader.source();
  if (identity.rank >= identity.world_size)
    contradiction(cat(identity.source, ": rank ", identity.rank, " of ", identity.world_size));
  const bool local_told = identity.local_size > 0;
  if (local_told && (identity.local_rank >= identity.local_size || identity.local_size > identity.world_size))
    contradiction(cat(identity.source, ": local rank ", identity.local_rank, " of ", identity.local_size,
                      " in a world of ", identity.world_size));
  return identity;
}

Identity from_torchrun(const Environment& environment) {
  Reader reader(environment, "torchrun");
  Identity identity = read_ranks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  read_master(reader, identity);
  identity.launcher = Launcher::kTorchrun;
  const auto quiet = [&](const char* name) {  // not worth a place in the message
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  identity.job = cat(identity.master_address, ":", identity.master_port, " ", quiet("TORCHELASTIC_RUN_ID"));
  identity.attempt = quiet("TORCHELASTIC_RESTART_COUNT");
  identity.agent_store = quiet("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return checked(identity, reader);
}

Identity from_open_mpi(const Environment& environment) {
  Reader reader(environment, "Open MPI");
  Identity identity = read_ranks(reader, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                          "OMPI_COMM_WORLD_LOCAL_SIZE"});
  read_master(reader, identity);
  identity.launcher = Launcher::kOpenMpi;
  if (const auto job = environment.find("PMIX_NAMESPACE"); job != environment.end()) identity.job = job->second;
  return checked(identity, reader);
}

Identity from_mpich(const Environment& environment) {
  Reader reader(environment, "MPICH");
  Identity identity = read_ranks(reader, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  read_master(reader, identity);
  identity.launcher = Launcher::kPmi;
  return checked(identity, reader);
}

// Ranks of this host: hosts may have different numbers, told in the order of the hosts, or one number that was asked
// for.
void read_slurm_local_size(Reader& reader, Identity& identity) {
  std::optional<std::string> counts = reader.text("SLURM_STEP_TASKS_PER_NODE");
  if (!counts) counts = reader.text("SLURM_TASKS_PER_NODE");
  if (!counts) {
    identity.local_size = reader.number("SLURM_NTASKS_PER_NODE").value_or(identity.local_size);
    return;
  }
  const std::vector<int> tasks = expand_task_counts(*counts);
  const int host = tasks.size() == 1 ? 0 : reader.needed("SLURM_NODEID");
  if (host >= std::ssize(tasks)) contradiction(cat(reader.source(), ": host ", host, " of ", tasks.size()));
  identity.local_size = tasks[static_cast<size_t>(host)];
}

Identity from_slurm(const Environment& environment) {
  Reader reader(environment, "Slurm");
  Identity identity = read_ranks(reader, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""});
  read_slurm_local_size(reader, identity);
  identity.launcher = Launcher::kSlurm;
  std::optional<std::string> hosts = reader.text("SLURM_STEP_NODELIST");  // the step may have a part of the job's hosts
  if (!hosts) hosts = reader.text("SLURM_JOB_NODELIST");
  if (hosts) identity.master_address = expand_node_list(*hosts).front();
  if (const std::optional<int> job = reader.number("SLURM_JOB_ID")) {
    identity.master_port = kFirstPort + *job % kPorts;
    identity.job = cat(*job, ".", reader.text("SLURM_STEP_ID").value_or(""));
  }
  identity.attempt = reader.text("SLURM_RESTART_COUNT").value_or("");
  read_master(reader, identity);
  return checked(identity, reader);
}

Identity from_pods(const Environment& environment) {
  Reader reader(environment, "Kubernetes");
  Identity identity = read_ranks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  read_master(reader, identity);
  identity.launcher = Launcher::kPods;
  identity.local_size = 1;
  identity.job = cat(identity.master_address, ":", identity.master_port);
  return checked(identity, reader);
}

// "01-04" or "7": prefix01 .. prefix04 or prefix7. Numbers keep their leading zeros.
void expand_range(const std::string& prefix, const std::string& range, const std::string& suffix,
                  std::vector<std::string>& hosts) {
  const size_t dash = range.find('-');
  const std::string low = range.substr(0, dash);
  const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
  const std::optional<int> first = whole_number(low), last = whole_number(high);
  if (!first || !last || *last < *first || *last - *first >= kMaxHosts)
    contradiction(cat("'", range, "' is no range of hosts"));
  for (int number = *first; number <= *last; ++number) {
    const std::string digits = std::to_string(number);
    hosts.push_back(cat(prefix, std::string(low.size() - std::min(low.size(), digits.size()), '0'), digits, suffix));
  }
}

// One entry of the list, "rack1n[01-04,7]": at most one pair of brackets.
void expand_entry(const std::string& entry, std::vector<std::string>& hosts) {
  const size_t open = entry.find('['), close = entry.find(']');
  if (open == std::string::npos && close == std::string::npos && !entry.empty()) return hosts.push_back(entry);
  if (open == std::string::npos || close == std::string::npos || close < open ||
      entry.find_first_of("[]", close + 1) != std::string::npos)
    contradiction(cat("'", entry, "' is no list of hosts"));
  const std::string ranges = entry.substr(open + 1, close - open - 1);
  for (size_t begin = 0; begin <= ranges.size();) {
    const size_t end = std::min(ranges.find(',', begin), ranges.size());
    expand_range(entry.substr(0, open), ranges.substr(begin, end - begin), entry.substr(close + 1), hosts);
    begin = end + 1;
  }
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> hosts;
  std::string entry;
  int depth = 0;
  for (const char c : list) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      expand_entry(entry, hosts);
      entry.clear();
    } else {
      entry += c;
    }
  }
  expand_entry(entry, hosts);
  return hosts;
}

std::vector<int> expand_task_counts(const std::string& list) {
  std::vector<int> counts;
  for (const std::string& entry : split(list, ',')) {
    const size_t open = entry.find("(x");
    const bool repeated = open != std::string::npos && entry.ends_with(')');
    const std::optional<int> tasks = whole_number(entry.substr(0, open));
    const std::optional<int> hosts = repeated ? whole_number(entry.substr(open + 2, entry.size() - open - 3)) : 1;
    if (!tasks || !hosts || *hosts > kMaxHosts || (open != std::string::npos && !repeated))
      contradiction(cat("'", list, "' is no list of tasks per host"));
    counts.insert(counts.end(), static_cast<size_t>(*hosts), *tasks);
  }
  return counts;
}

std::string job_token(const Environment& environment) {
  const auto found = environment.find("LOCKSTEP_JOB_TOKEN");
  return found == environment.end() ? "" : found->second;
}

namespace {

// srun with a PMI plugin sets PMI's numbers beside its own, which say more.
bool srun_set_pmi(const Environment& environment) {
  const auto equal = [&](const char* pmi, const char* slurm) {
    const auto ours = environment.find(pmi), theirs = environment.find(slurm);
    return ours != environment.end() && theirs != environment.end() && ours->second == theirs->second;
  };
  return environment.contains("SLURM_STEP_ID") && !environment.contains("MPI_LOCALNRANKS") &&
         equal("PMI_RANK", "SLURM_PROCID") && equal("PMI_SIZE", "SLURM_NTASKS");
}

}  // namespace

Identity detect_identity(const Environment& environment) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  if (has("LOCAL_RANK") && (has("RANK") || has("WORLD_SIZE"))) return from_torchrun(environment);
  // MPI before Slurm: mpirun within a Slurm job leaves both, and Slurm's numbers may be those of its daemons.
  if (has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(environment);
  if (has("PMI_RANK") && !srun_set_pmi(environment)) return from_mpich(environment);
  // Without a step this is a shell of the job, not one of its tasks.
  if (has("SLURM_PROCID") && has("SLURM_STEP_ID")) return from_slurm(environment);
  if (has("RANK") && has("MASTER_ADDR")) return from_pods(environment);
  for (const char* name : {"PMIX_RANK", "PALS_RANKID"}) {
    if (has(name))
      contradiction(cat(name, "=", environment.at(name), " says that this is a rank; nothing says of how many"));
  }
  return {};
}

}  // namespace lockstep::launch
