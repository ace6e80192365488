#include "apps/lockstep/runtime/loaded_model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "apps/lockstep/generate_heads.h"
#include "apps/lockstep/runtime/backends.h"
#include "apps/lockstep/runtime/generate_options.h"
#include "lockstep/base/text.h"

namespace lockstep::apps {
namespace {

// What the ranks read: the model, and files of prompts.
std::vector<train::Fact> model_facts(const CommandLine& command_line, const ModelSource& source) {
  std::vector<train::Fact> facts = train::content_facts("model", source.folder);
  const auto add = [&](const std::string& name, const std::filesystem::path& file) {
    const std::vector<train::Fact> more = train::content_facts(name, file);
    facts.insert(facts.end(), more.begin(), more.end());
  };
  if (!source.hugging_face) add("tokenizer", source.tokenizer);
  int number = 0;
  for (const std::string& file : command_line.values("prompt-file")) add(cat("--prompt-file ", ++number), file);
  return facts;
}

}  // namespace

LoadedModel::LoadedModel(const CommandLine& command_line, const ModelSource& source) {
  const launch::Identity& identity = command_line.identity;
  if (identity.world_size > 1) {
    config::RunConfig config;
    config.parallel.tp = identity.world_size;
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, cores / std::max(1, identity.local_size)));
    world_ = join_world(command_line, config, std::chrono::minutes(10), [&] { return model_facts(command_line, source); });
  }
  set_threads(command_line);
  guarded([&] {
    if (world_) check_heads(source.model, world_->size());
    load(source);
  });
}

void LoadedModel::load(const ModelSource& source) {
  arch::TensorShard shard;
  if (world_) {
    communicator_ = world_->all_ranks("tp");
    group_ = std::make_unique<parallel::TensorGroup>(*communicator_, parallel::TensorOptions{});
    shard = {.size = world_->size(), .rank = world_->rank()};
  }
  store_ = std::make_unique<engine::ParameterStore>(arch::param_table(source.model, shard),
                                                    engine::StoreOptions{.training = false});
  load_parameters(source, *store_);
  decoder_ = std::make_unique<model::Decoder>(source.model, *store_, group_.get());
}

double LoadedModel::take_communication_seconds() {
  double seconds = 0;
  if (group_) {
    for (const auto& [what, waited] : group_->take_exposed()) seconds += waited;
  }
  return seconds;
}

}  // namespace lockstep::apps
