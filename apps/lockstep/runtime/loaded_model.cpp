#include "apps/lockstep/runtime/loaded_model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "apps/lockstep/runtime/backends.h"
#include "apps/lockstep/runtime/generate_options.h"

namespace lockstep::apps {

LoadedModel::LoadedModel(const CommandLine& command_line, const ModelSource& source) {
  const launch::Identity& identity = command_line.identity;
  if (identity.world_size > 1) {
    config::RunConfig config;
    config.parallel.tp = identity.world_size;
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    at::set_num_threads(std::max(1, cores / std::max(1, identity.local_size)));
    world_ = join_world(identity, config, std::chrono::minutes(10));
  }
  set_threads(command_line);
  guarded([&] { load(source); });
}

void LoadedModel::load(const ModelSource& source) {
  arch::TensorShard shard;
  if (world_) {
    std::vector<int> ranks(static_cast<size_t>(world_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    communicator_ = world_->communicator(ranks, "tp");
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
