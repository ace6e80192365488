#include "lockstep/program/passes/make_layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lockstep/base/units.h"
#include "lockstep/config/suggestion.h"
#include "lockstep/program/passes/schedule_file.h"

namespace lockstep::program {

namespace {

std::vector<arch::Recompute> recompute_of(const config::MemorySection& memory, int64_t layers) {
  std::vector<arch::Recompute> blocks = memory.recompute.list;
  if (blocks.size() == 1) blocks.resize(static_cast<size_t>(layers), blocks[0]);
  return blocks;
}

std::string grid_of(const config::RunConfig& config) { return config.parallel.schedule.grid.value_or(""); }

// With what the configuration leaves to the grid of a file.
config::PipelineChoice choice_of(const config::RunConfig& config) {
  config::PipelineChoice choice = config::pipeline_choice(config);
  if (choice.virtual_stages == 0) choice.virtual_stages = std::max(1, read_grid(grid_of(config)).virtual_stages());
  return choice;
}

Pipeline pipeline_of(const config::RunConfig& config, const arch::ModelConfig& model) {
  const config::PipelineChoice choice = choice_of(config);
  Pipeline pipeline{.kind = config.parallel.schedule.kind, .ranks = config.parallel.pp,
                    .virtual_stages = choice.virtual_stages, .grid = grid_of(config)};
  pipeline.post_validation = choice.post_validation;
  pipeline.grid_in_v = pipeline.kind == ScheduleKind::kFile && read_grid(pipeline.grid).in_v();
  if (!choice.blocks.empty())
    pipeline.first_layer = stages_of_blocks(choice.blocks);
  else
    pipeline.first_layer = balanced_stages(model,
                                           {.batch = config.train.micro_batch,
                                            .seq_len = config.train.seq_len,
                                            .tensor = {.size = config.parallel.tp}},
                                           pipeline.stages());
  return pipeline;
}

// What the schedule says of its own; not of a key in which something else is wrong already.
std::vector<config::LayoutProblem> schedule_problems_of(const config::RunConfig& config, int world_size,
                                                        const std::vector<config::LayoutProblem>& known) {
  const auto wrong = [&](const std::string& key) {
    return std::any_of(known.begin(), known.end(), [&](const config::LayoutProblem& problem) { return problem.key == key; });
  };
  std::vector<config::LayoutProblem> found;
  if (config.parallel.pp == 1 || wrong("parallel.schedule") || wrong("parallel.virtual_stages")) return found;
  const ScheduleInput input{.kind = config.parallel.schedule.kind,
                            .ranks = config.parallel.pp,
                            .virtual_stages = choice_of(config).virtual_stages,
                            .microbatches = static_cast<int>(std::max(int64_t{1}, config::microbatches(config, world_size))),
                            .grid = grid_of(config),
                            .sequences = config.train.micro_batch * config::data_parallel_size(config, world_size)};
  for (config::LayoutProblem& problem : schedule_problems(input))
    if (!wrong(problem.key)) found.push_back(std::move(problem));
  return found;
}

Offload offload_of(const config::MemorySection& memory) {
  return {.optimizer = memory.offload.has(config::Offloaded::kOptimizer),
          .parameters = memory.offload.has(config::Offloaded::kParameters),
          .activations = memory.offload.has(config::Offloaded::kActivations),
          .host_limit = memory.host_limit.count,
          .disk = !memory.disk_path.empty()};
}

// Rules that name parameters by what the model has.
std::vector<config::LayoutProblem> rule_problems_of(const config::RunConfig& config, const arch::ModelConfig& model) {
  std::vector<config::LayoutProblem> found;
  if (config.optimizer.rules.list.empty()) return found;
  for (std::string& what : arch::rule_problems(config.optimizer, arch::param_table(model)))
    found.push_back({.key = "optimizer.rules", .what = std::move(what), .ways = {config::left_out("optimizer.rules")}});
  return found;
}

}  // namespace

// Relations of the configuration alone hide what is too large, and that hides what a schedule says by itself.
static constexpr int kExtentDepth = config::kRelationsDepth + 1, kScheduleDepth = kExtentDepth + 1;
static_assert(kScheduleDepth < kDepthsOfLayout);

std::vector<config::LayoutProblem> layout_problems(const config::RunConfig& config, const arch::ModelConfig& model,
                                                   int world_size) {
  config::RunConfig resolved = config;
  resolved.model.max_seq_len = model.max_seq_len;
  resolved.model.layers = model.layers;
  resolved.model.heads = model.heads;
  resolved.model.kv_heads = model.kv_heads;
  if (const auto& grid = config.parallel.schedule.grid; config.parallel.pp > 1 && config.parallel.virtual_stages == 0 && grid)
    resolved.parallel.virtual_stages = read_grid(*grid).virtual_stages();
  std::vector<config::LayoutProblem> problems = config::layout_problems(resolved, world_size);
  if (!problems.empty() && problems.front().depth < config::kRelationsDepth) return problems;
  // A schedule is read microbatch by microbatch: not of a job that is too large to be planned.
  int depth = config::kRelationsDepth;
  if (problems.empty()) {
    std::vector<config::LayoutProblem> beyond = extent_problems(resolved, model, world_size);
    for (config::LayoutProblem& problem : beyond) problem.depth = kExtentDepth;
    if (!beyond.empty()) return beyond;
    depth = kScheduleDepth;
  }
  for (std::vector<config::LayoutProblem>& beyond :
       std::array{schedule_problems_of(config, world_size, problems), rule_problems_of(config, model)})
    for (config::LayoutProblem& problem : beyond) {
      problem.depth = depth;
      problems.push_back(std::move(problem));
    }
  return problems;
}

Layout make_layout(const config::RunConfig& config, const arch::ModelConfig& model, int world_size) {
  return make_layout(config::LoadedConfig{.config = config, .origin = {}}, model, world_size);
}

Layout make_layout(const config::LoadedConfig& loaded, const arch::ModelConfig& model, int world_size) {
  const config::RunConfig& config = loaded.config;
  std::vector<config::LayoutProblem> problems = layout_problems(config, model, world_size);
  const config::Rules rules = [&](const config::Trial& trial) { return layout_problems(trial.loaded.config, model, trial.world_size); };
  keep_what_holds(problems, {.loaded = loaded, .world_size = world_size}, rules);
  config::refuse_layout(loaded, problems);
  mesh::PerAxis degrees = mesh::PerAxis::ones();
  const config::DataDegrees data = config::data_degrees(config, world_size);
  degrees[mesh::Axis::kDpReplicate] = data.replicate;
  degrees[mesh::Axis::kDpShard] = data.shard;
  degrees[mesh::Axis::kTp] = config.parallel.tp;
  degrees[mesh::Axis::kPp] = config.parallel.pp;
  return {.model = model,
          .mesh = mesh::Mesh(degrees),
          .pipeline = pipeline_of(config, model),
          .global_batch = config.train.global_batch,
          .micro_batch = config.train.micro_batch,
          .seq_len = config.train.seq_len,
          .precision = config.train.precision,
          .optimizer = config.optimizer,
          .data_parallel = config.parallel.data_parallel,
          .bucket_bytes = std::llround(config.parallel.bucket_mib * static_cast<double>(kMiB)),
          .zero = config::zero_stage(config),
          .prefetch = config.parallel.prefetch,
          .prefetch_limit = config.parallel.prefetch_limit.count,
          .reshard_after_forward = config.parallel.reshard_after_forward,
          .reshard_after_microbatch = config.parallel.reshard_after_microbatch,
          .reduce_precision = config.parallel.reduce_precision,
          .recompute = recompute_of(config.memory, model.layers),
          .offload = offload_of(config.memory),
          .device_limit = config.memory.device_limit.count,
          .sequence_parallel = config.parallel.sequence_parallel,
          .row_groups = config.parallel.row_groups,
          .overlap = config.parallel.overlap,
          .threads = std::max(1, config.train.threads)};
}

}  // namespace lockstep::program
