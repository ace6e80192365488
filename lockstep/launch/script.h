// Scripts and manifests that start a job somewhere else: `lockstep launch --print`. Pure functions to text.
//
// All of them pass signals on, so that the ranks can save, and start the job again where it ends with code 75 (saved,
// to be started again) and nobody wanted it to end; any other code is theirs.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep::launch {

struct ScriptJob {
  std::string program;                 // path of lockstep there
  std::vector<std::string> arguments;  // "train", "run.toml", "--optimizer.lr=1e-4"
  std::string name = "run";            // of the job; what a system does not allow in one is replaced
  std::string run_directory{};         // where metrics.jsonl will be
  int ranks = 1;
  int nodes = 1;                    // hosts; ranks is a multiple of it
  int threads = 0;                  // cores of a rank; 0: the system decides
  bool gpus = false;                // one for each rank
  bool mpi = false;                 // messages go through MPI: mpirun starts the ranks
  std::optional<double> seconds{};  // time limit
  std::string token{};              // LOCKSTEP_JOB_TOKEN
  std::string image{};              // Kubernetes: of the container, and
  std::string claim{};              // the PersistentVolumeClaim with configuration, data and runs, where the job works
};

std::string slurm_script(const ScriptJob& job);
std::string mpirun_script(const ScriptJob& job);
std::string torchrun_script(const ScriptJob& job);
// A Job, of one pod for each node; with several nodes also the Service by which they find pod 0, and a Secret.
std::string kubernetes_manifest(const ScriptJob& job);

// A word on one line, as bash reads it back: 'it'\''s', $'two\012lines'. Plain words stay as they are.
std::string shell_quoted(const std::string& word);

}  // namespace lockstep::launch
