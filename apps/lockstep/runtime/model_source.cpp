#include "apps/lockstep/runtime/model_source.h"

#include <cstdio>

#include "apps/lockstep/generate_ranks.h"
#include "lockstep/arch/hf_config.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/json.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/hf_import.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// Of a run directory, its checkpoints/, or one step of it.
fs::path find_step(const fs::path& path) {
  if (checkpoint::step_of(path)) return path;
  const fs::path run = checkpoint::run_of(path);
  const checkpoint::Latest latest = checkpoint::find_latest(run / "checkpoints");
  for (const checkpoint::StepFolder& folder : latest.skipped)
    print(cat("skipped ", folder.path.string(), ": ", folder.problem, "\n"), stderr);
  if (!latest.path)
    throw CheckpointError({.code = "LS1310", .what = cat("no whole checkpoint in ", (run / "checkpoints").string()),
                           .way_out = "train first: lockstep train run.toml"});
  return *latest.path;
}

// --model, or the one argument; a run.toml's run directory.
std::string named_model(const CommandLine& command_line) {
  std::vector<std::string> names = command_line.words();
  if (command_line.has("model")) names.push_back(command_line.value("model"));
  const bool by_config = !command_line.config_files().empty();
  if (names.size() + by_config != 1)
    reject("LS1004", cat("lockstep ", command_line.verb, " needs one run, step, run.toml or model directory"));
  for (const config::Override& change : command_line.overrides) {
    if (by_config && !generate_reads(change.key) && change.key != "run.dir" && change.key != "run.name")
      reject("LS1002", cat("--", change.key, " changes nothing: of run.toml only the run directory is read"),
             "the checkpoint says what the model is");
    if (!by_config && !generate_reads(change.key))
      reject("LS1002", cat("--", change.key, " changes a run.toml, and none was named"), "the checkpoint says what the model is");
  }
  return by_config ? load_config(command_line).config.run.dir : names[0];
}

}  // namespace

ModelSource find_model(const CommandLine& command_line) {
  const std::string name = named_model(command_line);
  if (names_hf_model(name)) {
    const fs::path folder = source_folder(name);
    const arch::HfConfig config = arch::load_hf_config(folder);
    return {.folder = folder,
            .hugging_face = true,
            .tokenizer = folder / "tokenizer.json",
            .model = config.model,
            .stop_tokens = config.eos_token_ids};
  }
  const fs::path step = find_step(name), run = checkpoint::run_of(step);
  const checkpoint::TrainState train_state = checkpoint::read_train_state(step, checkpoint::read_manifest(step));
  ModelSource source = {.folder = step,
                        .tokenizer = run / "tokenizer.json",
                        .model = arch::parse_model_json(train_state.model, step.string())};
  if (fs::exists(run / train::kHfConfigFile))
    source.stop_tokens = arch::load_hf_config(run, train::kHfConfigFile).eos_token_ids;
  return source;
}

void load_parameters(const ModelSource& source, engine::ParameterStore& store) {
  if (!source.hugging_face) {
    checkpoint::load_parameters_only(source.folder, store.state());
    return;
  }
  checkpoint::import_hf(source.folder, source.model, store.state());
  store.loaded();
}

}  // namespace lockstep::apps
