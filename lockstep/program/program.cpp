#include "lockstep/program/program.h"

#include "lockstep/base/error.h"

namespace lockstep::program {
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

}  // namespace lockstep::program
