// The folder of a run: runs/<name>/ with config.resolved.toml, env.json, metrics.jsonl, tb/, logs/, checkpoints/ and,
// when training has ended, DONE. Made by rank 0.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/base/json.h"

namespace lockstep::train {

inline constexpr const char* kHfConfigFile = "hf_config.json";  // what the run's model came from: its config.json

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.resolved.toml"; }
  std::filesystem::path environment() const { return root_ / "env.json"; }
  std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path trace() const { return root_ / "trace"; }         // of steps that were timed
  std::filesystem::path report() const { return root_ / "report.html"; }  // the last of them, drawn; the load of experts
  std::filesystem::path done() const { return root_ / "DONE"; }
  std::filesystem::path log(int rank) const;  // logs/rank-0003.log
  bool is_done() const { return std::filesystem::exists(done()); }

  struct Content {
    std::string config_text;  // of config.resolved.toml
    Json model;               // the sizes of the model: what makes two runs the same run
    Json environment;         // as describe_environment()
  };
  // Makes the folder, or goes on in it: config and environment are replaced, DONE is removed. CheckpointError LS1309
  // where it holds a run of another model, with the first five settings that differ; nothing is changed then.
  void open(const Content& content) const;
  // Writes DONE with the last step and its loss.
  void finish(int64_t step, double loss) const;

 private:
  std::filesystem::path root_;
};

// What is known of where the run happens: host, cores, compiler, LibTorch, time, and what the caller adds ("lockstep" =
// its version, "launcher", "world_size", "commit").
Json describe_environment(const Json& more = Json::object());

}  // namespace lockstep::train
