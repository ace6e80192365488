#include "lockstep/train/run_directory.h"

#include <torch/version.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/text.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShown = 5;
constexpr const char* kModelKey = "model";  // in env.json

// One line for each setting in which the two models differ.
std::vector<std::string> differences(const Json& ours, const Json& theirs) {
  std::vector<std::string> lines;
  for (const auto& [key, value] : ours.items()) {
    const Json other = theirs.contains(key) ? theirs[key] : Json();
    if (other != value) lines.push_back(cat(key, "   there ", other.dump(), "   config ", value.dump()));
  }
  return lines;
}

void make_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code)
    throw EnvironmentError({.code = "LS3101", .what = cat("cannot make ", folder.string(), ": ", code.message())});
}

}  // namespace

fs::path RunDirectory::log(int rank) const {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%04d.log", rank);
  return root_ / "logs" / name;
}

void RunDirectory::open(const Content& content) const {
  if (fs::exists(environment())) {
    const Json old = read_json(environment());
    const auto lines =
        differences(content.model, old.is_object() ? old.value(kModelKey, Json::object()) : Json::object());
    if (!lines.empty()) {
      std::string shown;
      for (size_t i = 0; i < std::min(kShown, lines.size()); ++i) shown += "\n  " + lines[i];
      if (lines.size() > kShown) shown += cat("   (first ", kShown, " of ", lines.size(), " shown)");
      throw CheckpointError({.code = "LS1309",
                             .what = cat("run directory ", root_.string(), " holds a run of another model", shown),
                             .way_out = "choose another run.name or run.dir, or remove the folder"});
    }
  }
  for (const fs::path& folder : {root_, root_ / "logs", root_ / "tb", checkpoints()}) make_folder(folder);
  Json environment_json = content.environment;
  environment_json[kModelKey] = content.model;
  write_file(config(), content.config_text);
  write_file(environment(), environment_json.dump(1) + "\n");
  std::error_code ignored;
  fs::remove(done(), ignored);
}

void RunDirectory::finish(int64_t step, double loss) const {
  write_file(done(), step_line(step, wall_time(), 0, {{"train/loss", loss}}) + "\n");
}

Json describe_environment(const Json& more) {
  Json json = {{"host", host_name()},
               {"cores", std::thread::hardware_concurrency()},
               {"compiler", cat("g++ ", __VERSION__)},
               {"torch", TORCH_VERSION},
               {"started", wall_time()}};
  json.update(more);
  return json;
}

}  // namespace lockstep::train
