// What other launchers say in the environment about the place of this process.
#include <algorithm>
#include <charconv>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/identity.h"

namespace lockstep::launch {
namespace {

constexpr int kMaxHosts = 1 << 20;
const char* const kWayOut = "start all ranks by one launcher, or unset what an earlier one has left behind (env -u NAME)";

[[noreturn]] void contradiction(const std::string& what) {
  throw ConfigError({.code = "LS1061", .what = what, .way_out = kWayOut});
}

std::optional<int> whole_number(const std::string& text) {
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
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
  identity.local_size = reader.number(names.local_size).value_or(identity.local_rank + 1);
  return identity;
}

void read_master(Reader& reader, Identity& identity) {
  identity.master_address = reader.text("MASTER_ADDR").value_or("");
  identity.master_port = reader.number("MASTER_PORT").value_or(0);
}

Identity checked(Identity identity, const Reader& reader) {
  identity.source = reader.source();
  if (identity.rank >= identity.world_size)
    contradiction(cat(identity.source, ": rank ", identity.rank, " of ", identity.world_size));
  if (identity.local_rank >= identity.local_size || identity.local_size > identity.world_size)
    contradiction(cat(identity.source, ": local rank ", identity.local_rank, " of ", identity.local_size, " in a world of ",
                      identity.world_size));
  return identity;
}

Identity from_torchrun(const Environment& environment) {
  Reader reader(environment, "torchrun");
  Identity identity = read_ranks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  read_master(reader, identity);
  return checked(identity, reader);
}

Identity from_open_mpi(const Environment& environment) {
  Reader reader(environment, "Open MPI");
  return checked(read_ranks(reader, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                     "OMPI_COMM_WORLD_LOCAL_SIZE"}),
                 reader);
}

Identity from_mpich(const Environment& environment) {
  Reader reader(environment, "MPICH");
  return checked(read_ranks(reader, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}), reader);
}

Identity from_slurm(const Environment& environment) {
  Reader reader(environment, "Slurm");
  Identity identity = read_ranks(reader, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"});
  std::optional<std::string> hosts = reader.text("SLURM_STEP_NODELIST");  // the step may have a part of the job's hosts
  if (!hosts) hosts = reader.text("SLURM_JOB_NODELIST");
  if (hosts) identity.master_address = expand_node_list(*hosts).front();
  if (const std::optional<int> job = reader.number("SLURM_JOB_ID")) identity.master_port = 15000 + *job % 20000;
  return checked(identity, reader);
}

Identity from_kubeflow(const Environment& environment) {
  Reader reader(environment, "Kubeflow PyTorchJob");
  Identity identity = read_ranks(reader, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  read_master(reader, identity);
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

Identity detect_identity(const Environment& environment) {
  const auto has = [&](const char* name) { return environment.contains(name); };
  if (has("LOCAL_RANK") && (has("RANK") || has("WORLD_SIZE"))) return from_torchrun(environment);
  // MPI before Slurm: mpirun within a Slurm job leaves both, and Slurm's numbers may be those of its daemons.
  if (has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(environment);
  if (has("PMI_RANK")) return from_mpich(environment);
  // Without a step this is a shell of the job, not one of its tasks.
  if (has("SLURM_PROCID") && has("SLURM_STEP_ID")) return from_slurm(environment);
  if (has("RANK") && has("MASTER_ADDR")) return from_kubeflow(environment);
  for (const char* name : {"PMIX_RANK", "PALS_RANKID"}) {
    if (has(name)) contradiction(cat(name, "=", environment.at(name), " says that this is a rank; nothing says of how many"));
  }
  return {};
}

}  // namespace lockstep::launch
