#include "lockstep/launch/script.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

bool is_plain(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
}

std::string command_of(const ScriptJob& job) {
  std::vector<std::string> words = {shell_quoted(job.program)};
  for (const std::string& argument : job.arguments) words.push_back(shell_quoted(argument));
  return join(words, " ");
}

// For places that know no quotes.
std::string plain_name(const std::string& name) {
  std::string plain = name;
  for (char& c : plain)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '_' && c != '.') c = '_';
  return plain.empty() ? "run" : plain;
}

// Slurm's form of a time: whole minutes are lost in none of its fields.
std::string clock_text(double seconds) {
  const auto total = static_cast<int64_t>(std::ceil(seconds));
  char text[40];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(total / 3600),
                static_cast<long long>(total / 60 % 60), static_cast<long long>(total % 60));
  return text;
}

std::string token_line(const ScriptJob& job) {
  return job.token.empty() ? "" : cat("export LOCKSTEP_JOB_TOKEN=", shell_quoted(job.token), "\n");
}

// mpirun would end the others when the first of the ranks returns 75.
std::string mpirun_command(const ScriptJob& job) {
  return cat("mpirun -n ", job.ranks, job.nodes > 1 ? cat(" --map-by ppr:", job.ranks / job.nodes, ":node") : "",
             " --mca orte_abort_on_non_zero_exit 0");
}

// start() runs in the background; run() leaves its exit code in $code.
constexpr const char* kRun = R"sh(
ended=0
job=
save() { [ -z "$job" ] || kill -s USR1 "$job" 2>/dev/null; }
trap save USR1                 # the ranks save and leave with code 75
trap 'ended=1; save' TERM INT  # the same, and somebody wants the job to end

run() {
  start & job=$!
  wait "$job"; code=$?
  while kill -0 "$job" 2>/dev/null; do wait "$job"; done  # a signal cuts wait short
  wait "$job"; code=$?
}
)sh";

constexpr const char* kAgain = R"sh(
run
while [ "$code" = 75 ] && [ "$ended" = 0 ]; do
  echo "saved with code 75; starting again" >&2
  run
done
exit "$code"
)sh";

std::string start_function(const std::string& command) {
  return cat("start() {\n  exec ", command, "\n}\n");
}

}  // namespace

std::string shell_quoted(const std::string& word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  const bool one_line = std::none_of(word.begin(), word.end(), [](unsigned char c) { return std::iscntrl(c) != 0; });
  std::string quoted = one_line ? "'" : "$'";
  for (const char c : word) {
    char code[8];
    std::snprintf(code, sizeof code, "\\%03o", static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (one_line) {
      quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    } else {
      quoted += std::iscntrl(static_cast<unsigned char>(c)) != 0 || c == '\'' || c == '\\' ? std::string(code)
                                                                                           : std::string(1, c);
    }
  }
  return quoted + "'";
}

std::string slurm_script(const ScriptJob& job) {
  const int per_node = job.ranks / job.nodes;
  // Time to save before the end: ten minutes, or a tenth of a short job.
  const double notice = job.seconds ? std::clamp(*job.seconds / 10, 60.0, 600.0) : 600.0;
  std::string text = "#!/usr/bin/env bash\n# Written by lockstep launch --print slurm; sbatch FILE submits it.\n";
  const auto option = [&](const std::string& line) { text += cat("#SBATCH --", line, "\n"); };
  option(cat("job-name=", plain_name(job.name)));
  option(cat("nodes=", job.nodes));
  option(cat("ntasks=", job.ranks));
  option(cat("ntasks-per-node=", per_node));
  if (job.threads > 0) option(cat("cpus-per-task=", job.threads));
  if (job.gpus) option(cat("gpus-per-node=", per_node));
  if (job.seconds) option(cat("time=", clock_text(*job.seconds)));
  option(cat("signal=B:USR1@", static_cast<int>(notice)));
  option("requeue");
  option("open-mode=append");
  option(cat("output=", plain_name(job.name), "-%j.out"));
  text += "set -u\n" + token_line(job) + "\n";
  const std::string cpus =
      job.threads > 0 ? cat(" --cpus-per-task=", job.threads) : "";  // srun does not take them over
  const std::string starter =
      job.mpi ? mpirun_command(job) : cat("srun --ntasks=", job.ranks, cpus, " --kill-on-bad-exit=0");
  text += start_function(cat(starter, " ", command_of(job)));
  text += kRun;
  text += R"sh(
run
if [ "$code" = 75 ] && [ "$ended" = 0 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
)sh";
  return text;
}

std::string mpirun_script(const ScriptJob& job) {
  std::string text = "#!/usr/bin/env bash\n# Written by lockstep launch --print mpirun, for Open MPI.\nset -u\n";
  if (job.nodes > 1)
    text += cat(": \"${HOSTS:?names the hosts and their ranks: HOSTS=n1:", job.ranks / job.nodes,
                ",n2:", job.ranks / job.nodes, "}\"\n");
  text += token_line(job) + "\n";
  std::string options = job.nodes > 1 ? " --host \"$HOSTS\"" : "";
  if (job.nodes > 1 && !job.mpi) {
    text += "export MASTER_ADDR=\"${MASTER_ADDR:-${HOSTS%%[:,]*}}\" MASTER_PORT=\"${MASTER_PORT:-29500}\"\n";
    options += " -x MASTER_ADDR -x MASTER_PORT -x LOCKSTEP_JOB_TOKEN";
  }
  text += start_function(cat(mpirun_command(job), options, " ", command_of(job)));
  return text + kRun + kAgain;
}

std::string torchrun_script(const ScriptJob& job) {
  const std::string per_node = cat("--nproc-per-node=", job.ranks / job.nodes);
  std::string text = "#!/usr/bin/env bash\n# Written by lockstep launch --print torchrun.\nset -u\n";
  std::string where = "--standalone " + per_node;
  if (job.nodes > 1) {
    text +=
        ": \"${NODE_RANK:?is the number of this host, from 0}\"\n"
        ": \"${MASTER_ADDR:?is the address of host 0}\" \"${MASTER_PORT:=29500}\"\n";
    where = cat("--nnodes=", job.nodes, " ", per_node,
                " --node-rank=\"$NODE_RANK\" --master-addr=\"$MASTER_ADDR\" --master-port=\"$MASTER_PORT\"");
  }
  text += token_line(job) + cat("metrics=", shell_quoted(job.run_directory + "/metrics.jsonl"), "\n\n");
  text += start_function(cat("torchrun --no-python ", where,
                             " --signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --shutdown-timeout=600 ",
                             command_of(job)));
  text += kRun;
  text += R"sh(
# torchrun returns 1 whatever the ranks did: their code is in the last stop event that this start has added.
run_ranks() {
  local before=0
  [ ! -f "$metrics" ] || before=$(wc -l < "$metrics")
  run
  [ "$code" != 0 ] && [ -f "$metrics" ] || return 0
  local said
  said=$(tail -n "+$((before + 1))" "$metrics" | sed -n 's/.*"event":"stop".*"code":\([0-9]*\).*/\1/p' | tail -n 1)
  code=${said:-$code}
}

run_ranks
while [ "$code" = 75 ] && [ "$ended" = 0 ]; do
  echo "saved with code 75; starting again" >&2
  run_ranks
done
exit "$code"
)sh";
  return text;
}

}  // namespace lockstep::launch
