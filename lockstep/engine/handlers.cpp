#include "lockstep/engine/handlers.h"

namespace lockstep::engine {
namespace {

using program::Collective;

void check(const program::PlannedCall& call, const CallTensors& tensors) {
  const at::Tensor& full = call.collective == Collective::kAllGather ? tensors.output : tensors.input;
  LOCKSTEP_CHECK(full.defined(), program::call_text(call.id), " without a tensor");
  LOCKSTEP_CHECK_EQ(static_cast<int64_t>(full.element_size()), call.element_size, "bytes of an element of ", program::call_text(call.id));
  if (call.collective == Collective::kSend || call.collective == Collective::kRecv) return;
  LOCKSTEP_CHECK_EQ(full.numel(), call.numel, "elements of ", program::call_text(call.id));
}

}  // namespace

comm::Work execute(Groups& groups, const program::PlannedCall& call, const CallTensors& tensors, bool blocking) {
  check(call, tensors);
  comm::Communicator& ranks = groups.over(call.group);
  const comm::CallOptions options{.id = call.id, .algorithm = call.algorithm, .blocking = blocking};
  switch (call.collective) {
    case Collective::kAllReduce:
      return ranks.all_reduce(tensors.input, options);
    case Collective::kReduce:
      return ranks.reduce(tensors.input, call.root, options);
    case Collective::kBroadcast:
      return ranks.broadcast(tensors.input, call.root, options);
    case Collective::kAllGather:
      return ranks.all_gather(tensors.input, tensors.output, options);
    case Collective::kReduceScatter:
      return ranks.reduce_scatter(tensors.input, tensors.output, options);
    case Collective::kAllToAll:
      return ranks.all_to_all(tensors.input, tensors.output, options);
    case Collective::kSend:
      return ranks.send(tensors.input, call.root, options);
    case Collective::kRecv:
      return ranks.recv(tensors.input, call.root, options);
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kBarrier:
      break;
  }
  throw InternalError(cat("no list plans a ", program::collective_name(call.collective)));
}

}  // namespace lockstep::engine
