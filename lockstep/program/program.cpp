#include "lockstep/program/program.h"

#include "lockstep/base/check.h"
#include "lockstep/program/passes.h"
#include "lockstep/program/post_validation.h"
#include "lockstep/program/verify.h"

namespace lockstep::program {
namespace {

struct Step {
  Pass pass;
  Program (*make)(Program, const Layout&);
};
constexpr Step kSteps[] = {
    {Pass::kExpandLayers, expand_layers},       {Pass::kTransferActivations, transfer_activations},
    {Pass::kShardParameters, shard_parameters}, {Pass::kReduceGradients, reduce_gradients},
    {Pass::kUpdate, update},                    {Pass::kPostValidation, validate_in_next_step},
    {Pass::kOffload, offload},
};

void require_sound(const Program& program, const Layout& layout, Pass pass) {
  const std::vector<std::string> problems = verify(program, layout, pass);
  LOCKSTEP_CHECK(problems.empty(), "after pass ", pass_name(pass), ":\n  ", join(problems, "\n  "));
}

}  // namespace

std::string_view action_name(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackward:
      return "B";
    case ActionKind::kBackwardInput:
      return "I";
    case ActionKind::kBackwardWeight:
      return "W";
    case ActionKind::kRecompute:
      return "RECOMPUTE";
    case ActionKind::kSendForward:
      return "SEND_F";
    case ActionKind::kRecvForward:
      return "RECV_F";
    case ActionKind::kSendBackward:
      return "SEND_B";
    case ActionKind::kRecvBackward:
      return "RECV_B";
    case ActionKind::kUnshard:
      return "UNSHARD";
    case ActionKind::kReshard:
      return "RESHARD";
    case ActionKind::kFetch:
      return "FETCH";
    case ActionKind::kEvict:
      return "EVICT";
    case ActionKind::kShardGrad:
      return "SHARD_GRAD";
    case ActionKind::kReduceShard:
      return "REDUCE_SHARD";
    case ActionKind::kReduceGrad:
      return "REDUCE_GRAD";
    case ActionKind::kPush:
      return "PUSH";
    case ActionKind::kReduceTied:
      return "REDUCE_TIED";
    case ActionKind::kLoss:
      return "LOSS";
    case ActionKind::kReducePartial:
      return "REDUCE_PARTIAL";
    case ActionKind::kNorm:
      return "NORM";
    case ActionKind::kStep:
      return "STEP";
    case ActionKind::kPull:
      return "PULL";
    case ActionKind::kTokens:
      return "TOKENS";
    case ActionKind::kValidate:
      return "VALIDATE";
  }
  throw InternalError("no such action");
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

// A sound result says that every pass was; only what is not is made again, to name the pass that broke it.
Program build_program(const Layout& layout) {
  Program program = schedule(layout);
  for (const Step& step : kSteps) program = step.make(std::move(program), layout);
  if (verify(program, layout).empty()) return program;
  Program again = schedule(layout);
  require_sound(again, layout, Pass::kSchedule);
  for (const Step& step : kSteps) {
    again = step.make(std::move(again), layout);
    require_sound(again, layout, step.pass);
  }
  return again;
}

}  // namespace lockstep::program
