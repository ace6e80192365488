
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::program {
namespace {

constexpr PassStep kSteps[] = {
    {Pass::kExpandLayers, "expand_layers", expand_layers},
    {Pass::kTransferActivations, "transfer_activations", transfer_activations},
    {Pass::kDivideLayers, "divide_layers", divide_layers},
    {Pass::kShardParameters, "shard_parameters", shard_parameters},
    {Pass::kReduceGradients, "reduce_gradients", reduce_gradients},
    {Pass::kUpdate, "update", update},
    {Pass::kPostValidation, "validate_in_next_step", validate_in_next_step},
    {Pass::kOffload, "offload", offload},
};

}  // namespace

std::span<const PassStep> pass_steps() { return kSteps; }

Program make_program(const Layout& layout) {
  Program program = schedule(layout);
  for (const PassStep& step : kSteps) program = step.make(std::move(program), layout);
  return program;
}

Program evaluation_program(const Layout& layout) {
  std::vector<std::vector<Action>> lists(static_cast<size_t>(layout.pipeline.ranks));
  for (int stage = 0; stage < layout.pipeline.stages(); ++stage)
    lists[static_cast<size_t>(layout.pipeline.rank_of(stage))].push_back(
        {.kind = ActionKind::kForward, .stage = stage, .microbatch = 0});
  Program program = expand_layers(by_pipeline_rank(layout, std::move(lists)), layout);
  return offload(shard_parameters(transfer_activations(std::move(program), layout), layout), layout);
}

}  // namespace lockstep::program
