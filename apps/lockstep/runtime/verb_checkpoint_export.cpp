// lockstep checkpoint export RUN | STEP DIR --to hf: a step as a directory that transformers loads.
#include <cstdio>
#include <optional>
#include <utility>

#include "apps/lockstep/runtime/verbs.h"
#include "lockstep/arch/hf_config.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/source.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/directory.h"
#include "lockstep/checkpoint/hf_export.h"
#include "lockstep/config/load.h"
#include "lockstep/train/run_directory.h"

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// The config.json that the run's model came from: the run's copy, or else that of the directory it was started from.
std::optional<Json> original_config(const fs::path& run) {
  if (fs::exists(run / train::kHfConfigFile)) return arch::read_hf_json(run / train::kHfConfigFile);
  if (!fs::exists(run / "config.resolved.toml")) return std::nullopt;
  const std::string from = config::load_config({run / "config.resolved.toml"}, {}).config.model.from;
  if (from.empty() || !fs::exists(source_folder(from) / "config.json")) return std::nullopt;
  return arch::read_hf_json(source_folder(from) / "config.json");
}

std::optional<at::ScalarType> dtype_of(const CommandLine& command_line) {
  if (!command_line.has("dtype")) return std::nullopt;
  const std::string name = command_line.value("dtype");
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  reject("LS1005", cat("--dtype ", name, ": fp32 or bf16 is needed"), "without it every tensor keeps the type it was saved with");
}

// "5GB" = 5e9 bytes, as transformers reads it; "5GiB" and plain bytes too.
int64_t shard_bytes(const std::string& text) {
  for (const auto& [unit, factor] : {std::pair{"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}}) {
    if (!text.ends_with(unit)) continue;
    const auto number = parse_number<double>(std::string_view(text).substr(0, text.size() - 2));
    if (number && *number > 0 && *number < 1e9) return static_cast<int64_t>(*number * factor);
  }
  const auto bytes = parse_bytes(text);
  if (bytes && *bytes > 0) return *bytes;
  reject("LS1005", cat("--max-shard-size ", text, ": a size is needed, like 5GB or 500MB"));
}

}  // namespace

int export_checkpoint(const CommandLine& command_line) {
  const std::string to = command_line.value("to");
  if (to != "hf")
    reject("LS1004", to.empty() ? "lockstep checkpoint export needs --to hf" : cat("--to ", to, ": only hf is known"),
           "lockstep checkpoint export RUN DIR --to hf");
  const auto dtype = dtype_of(command_line);
  const int64_t max_shard_bytes = shard_bytes(command_line.value("max-shard-size", "5GB"));
  checkpoint::StepModel step(checkpoint::find_step(command_line.arguments[1]));
  const fs::path run = checkpoint::run_of(step.path());
  const std::optional<Json> original = original_config(run);
  std::map<std::string, fs::path> files;
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(run / name)) files[name] = run / name;
  }
  const checkpoint::HfExportResult result =
      checkpoint::export_hf({.step = step,
                             .directory = command_line.arguments[2],
                             .config = arch::hf_config_json(step.model(), original ? &*original : nullptr),
                             .dtype = dtype,
                             .max_shard_bytes = max_shard_bytes,
                             .files = files});
  if (command_line.json) {
    const OrderedJson object = {{"step", step.path().string()},
                                {"directory", command_line.arguments[2]},
                                {"parameters", result.parameters},
                                {"tensor_bytes", result.tensor_bytes},
                                {"files", result.files}};
    print(object.dump() + "\n");
    return 0;
  }
  print(cat(step.path().string(), "  ->  ", command_line.arguments[2], "\n  ", format_count(static_cast<double>(result.parameters)),
            " parameters, ", format_bytes(static_cast<double>(result.tensor_bytes)), "\n"));
  for (const auto& [name, bytes] : result.files) print(cat("    ", pad_left(format_bytes(static_cast<double>(bytes)), 10), "  ", name, "\n"));
  return 0;
}

}  // namespace lockstep::apps
