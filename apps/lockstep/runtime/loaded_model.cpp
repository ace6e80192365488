#include "apps/lockstep/runtime/loaded_model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "apps/lockstep/runtime/backends.h"
#include "apps/lockstep/runtime/generate_options.h"
#include "lockstep/base/text.h"
#include "lockstep/program/layout.h"

namespace lockstep::apps {
namespace {

// How the ranks hold the model, and what they read: the model, and files of prompts.
std::vector<train::Fact> model_facts(const CommandLine& command_line, const ModelSource& source) {
  std::vector<train::Fact> facts = train::content_facts("model", source.folder);
  for (const config::Override& change : command_line.overrides)
    if (generate_reads(change.key)) facts.push_back({.name = change.key, .value = change.value, .origin = "--" + change.key});
  const auto add = [&](const std::string& name, const std::filesystem::path& file) {
    const std::vector<train::Fact> more = train::content_facts(name, file);
    facts.insert(facts.end(), more.begin(), more.end());
  };
  if (!source.hugging_face) add("tokenizer", source.tokenizer);
  int number = 0;
  for (const std::string& file : command_line.values("prompt-file")) add(cat("--prompt-file ", ++number), file);
  return facts;
}

program::Layout layout_of(const arch::ModelConfig& model, const GenerateDegrees& degrees, int ranks) {
  mesh::PerAxis axes = mesh::PerAxis::ones();
  axes[mesh::Axis::kTp] = degrees.tensor(ranks);
  axes[mesh::Axis::kCp] = degrees.context();
  program::Layout layout{.model = model, .mesh = mesh::Mesh(axes), .sequence_parallel = false};
  layout.ep = degrees.experts();
  layout.etp = degrees.expert_width();
  return layout;
}

}  // namespace

LoadedModel::LoadedModel(const CommandLine& command_line, const ModelSource& source) {
  const launch::Identity& identity = command_line.identity;
  const GenerateDegrees degrees = generate_degrees(command_line);
  if (identity.world_size > 1) {
    config::RunConfig config;
    config.parallel.tp = identity.world_size;
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, cores / std::max(1, identity.local_size)));
    world_ = join_world(command_line, config, std::chrono::minutes(10), [&] { return model_facts(command_line, source); });
  }
  set_threads(command_line);
  guarded([&] {
    check_ranks(source.model, degrees, ranks());
    load(source, degrees);
  });
}

void LoadedModel::load(const ModelSource& source, const GenerateDegrees& degrees) {
  arch::TensorShard shard;
  if (world_) {
    const program::Layout layout = layout_of(source.model, degrees, world_->size());
    shard = layout.tensor_shard(world_->rank());
    communicator_ = world_->communicator(layout.mesh.group(world_->rank(), mesh::Axis::kTp), "tp");
    group_ = std::make_unique<parallel::TensorGroup>(*communicator_, parallel::TensorOptions{});
    if (degrees.context() > 1) {
      context_communicator_ = world_->communicator(layout.mesh.group(world_->rank(), mesh::Axis::kCp), "cp");
      context_ = std::make_unique<parallel::ContextGroup>(*context_communicator_, parallel::ContextOptions{});
    }
    if (layout.ep * layout.etp > 1) {
      expert_communicator_ = world_->communicator(layout.mesh.group(world_->rank(), layout.expert_ranks()), "ep");
      // A step has few rows: to hand a call to another thread takes longer than what it would hide.
      experts_ = std::make_unique<parallel::ExpertGroup>(*expert_communicator_, layout.ep, layout.etp,
                                                         parallel::DispatchOptions{.overlap = false});
    }
  }
  store_ = std::make_unique<engine::ParameterStore>(arch::param_table(source.model, shard),
                                                    engine::StoreOptions{.training = false});
  load_parameters(source, *store_);
  decoder_ = std::make_unique<model::Decoder>(source.model, *store_, group_.get(), experts_.get(), context_.get());
}

double LoadedModel::take_communication_seconds() {
  double seconds = 0;
  const auto add = [&](auto& group) {
    if (!group) return;
    for (const auto& [what, waited] : group->take_exposed()) seconds += waited;
  };
  add(group_);
  add(experts_);
  add(context_);
  return seconds;
}

}  // namespace lockstep::apps
