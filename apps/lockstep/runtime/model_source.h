// The model that `lockstep generate` and `lockstep chat` are asked for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "apps/lockstep/command_line.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/engine/parameter_store.h"

namespace lockstep::apps {

struct ModelSource {
  std::filesystem::path folder;     // a step's folder, or a model directory of Hugging Face
  bool hugging_face = false;
  std::filesystem::path tokenizer;  // tokenizer.json; may not exist. Beside it lie the chat template and what else it has
  arch::ModelConfig model{};
  std::vector<int64_t> stop_tokens{};  // from generation_config.json or config.json; empty = the tokenizer's
};

// What --model, the one argument or the run.toml names (base/source.h). ConfigError LS1002, LS1004, CheckpointError LS1310 and what
// reading the model's description throws. Of overrides without a run.toml those of generate_ranks.h are taken.
ModelSource find_model(const CommandLine& command_line);

void load_parameters(const ModelSource& source, engine::ParameterStore& store);

}  // namespace lockstep::apps
