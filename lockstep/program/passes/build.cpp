#include "lockstep/program/passes/build.h"

#include "lockstep/program/passes/post_validation.h"

namespace lockstep::program {
namespace {

constexpr PassStep kSteps[] = {
    {Pass::kExpandLayers, expand_layers},       {Pass::kTransferActivations, transfer_activations},
    {Pass::kShardParameters, shard_parameters}, {Pass::kReduceGradients, reduce_gradients},
    {Pass::kUpdate, update},                    {Pass::kPostValidation, validate_in_next_step},
    {Pass::kOffload, offload},
};

}  // namespace

std::span<const PassStep> pass_steps() { return kSteps; }

Program make_program(const Layout& layout) {
  Program program = schedule(layout);
  for (const PassStep& step : kSteps) program = step.make(std::move(program), layout);
  return program;
}

Program evaluation_program(const Layout& layout) {
  Program program;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::vector<Action>& actions = program.ranks.emplace_back();
    for (const int stage : layout.pipeline.stages_of(layout.pipeline_rank(rank)))
      actions.push_back({.kind = ActionKind::kForward, .stage = stage, .microbatch = 0});
  }
  return offload(shard_parameters(transfer_activations(expand_layers(std::move(program), layout), layout), layout), layout);
}

}  // namespace lockstep::program
