// `lockstep generate`: judges how many ranks hold the model before any is started. Those that another launcher has started
// compare first what they were told, and judge then (runtime/loaded_model.h).
#include <algorithm>

#include "apps/lockstep/generate_ranks.h"
#include "apps/lockstep/ranks.h"
#include "apps/lockstep/verbs.h"
#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// The newest step of a run that says what its model is; nothing where there is none to be seen from here.
std::optional<arch::ModelConfig> model_of_step(const fs::path& step) {
  const fs::path file = step / "train_state.json";
  std::error_code problem;
  if (!fs::is_regular_file(file, problem)) return std::nullopt;
  const Json state = read_json(file);
  if (!state.is_object() || !state.contains("model")) return std::nullopt;
  return arch::parse_model_json(state["model"], step.string());
}

std::optional<arch::ModelConfig> model_of_run(fs::path run) {
  run = run.lexically_normal();
  if (!run.has_filename()) run = run.parent_path();
  if (auto model = model_of_step(run)) return model;
  const fs::path checkpoints = run.filename() == "checkpoints" ? run : run / "checkpoints";
  std::vector<fs::path> steps;
  std::error_code problem;
  for (const auto& entry : fs::directory_iterator(checkpoints, problem)) {
    if (entry.path().filename().string().starts_with("step-")) steps.push_back(entry.path());
  }
  std::sort(steps.rbegin(), steps.rend());
  for (const fs::path& step : steps) {
    if (auto model = model_of_step(step)) return model;
  }
  return std::nullopt;
}

std::optional<arch::ModelConfig> model_of(const CommandLine& command_line) {
  if (!command_line.config_files().empty()) return model_of_run(load_config(command_line).config.run.dir);
  std::vector<std::string> names = command_line.words();
  if (command_line.has("model")) names.push_back(command_line.value("model"));
  if (names.size() != 1) return std::nullopt;  // the verb itself tells
  if (names_hf_model(names[0])) return arch::load_hf_config(source_folder(names[0])).model;
  return model_of_run(names[0]);
}

int judged_ranks(const CommandLine& command_line) {
  const GenerateDegrees degrees = generate_degrees(command_line);
  const int ranks = command_line.ranks.value_or(degrees.ranks());
  check_degree(degrees, ranks);
  if (ranks == 1 && !degrees.share_experts() && degrees.context() == 1) return ranks;
  const bool by_key = degrees.tp && !command_line.ranks;
  if (const auto model = model_of(command_line)) check_ranks(*model, degrees, ranks, by_key ? "parallel.tp" : config::kRanks);
  return ranks;
}

}  // namespace

int verb_generate(const CommandLine& command_line) {
  config::RunConfig config;
  config.parallel.tp = is_rank(command_line) ? command_line.identity.world_size : judged_ranks(command_line);
  return run_on_ranks(command_line, config, {.ranks = config.parallel.tp});
}

}  // namespace lockstep::apps
