#include "lockstep/engine/activation_links.h"

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;
using program::Algorithm;

ActivationLinks::ActivationLinks(const program::Layout& layout, int depth, Groups& groups, ExposedWaits& waits)
    : layout_(layout), depth_(depth), groups_(groups), waits_(waits) {}

Started ActivationLinks::send(const Action& action, at::Tensor tensor) {
  const bool forward = action.kind == ActionKind::kSendForward;
  LOCKSTEP_CHECK(tensor.defined(), program::action_name(action.kind), " of stage ", action.stage, " has nothing to send");
  const int to = layout_.rank_at(groups_.rank(), forward ? action.stage + 1 : action.stage - 1);
  comm::Communicator& link = groups_.link(groups_.rank(), to, forward);
  std::deque<OnItsWay>& on_their_way = sent_[&link];
  if (std::ssize(on_their_way) == depth_) {
    waits_.wait(on_their_way.front().work, "pp send");
    on_their_way.pop_front();
  }
  OnItsWay& last = on_their_way.emplace_back(OnItsWay{.tensor = std::move(tensor), .work = {}});
  last.work = link.send(last.tensor, 1,
                        {.site = cat(forward ? "send_f stage " : "send_b stage ", action.stage), .algorithm = Algorithm::kDirect});
  return [this] { flush(); };
}

Started ActivationLinks::recv(const Action& action, at::Tensor tensor) {
  const bool forward = action.kind == ActionKind::kRecvForward;
  const int from_stage = forward ? action.stage - 1 : action.stage + 1;
  const int from = layout_.rank_at(groups_.rank(), from_stage);
  comm::Communicator& link = groups_.link(from, groups_.rank(), forward);
  const auto [begin, end] = layout_.stage_layers(action.stage);
  const Flow flow{forward ? begin : end - 1, action.microbatch, !forward};
  const auto [place, fresh] = coming_.try_emplace(flow);
  LOCKSTEP_CHECK(fresh, "stage ", action.stage, " waits for microbatch ", action.microbatch, " already");
  place->second.tensor = std::move(tensor);
  place->second.work =
      link.recv(place->second.tensor, 0,
                {.site = cat(forward ? "recv_f stage " : "recv_b stage ", action.stage), .algorithm = Algorithm::kDirect});
  return [this, flow] { waits_.wait(coming_.at(flow).work, "pp recv"); };
}

at::Tensor ActivationLinks::take(const Flow& flow) {
  auto found = coming_.extract(flow);
  return found ? std::move(found.mapped().tensor) : at::Tensor();
}

// All that are on their way: who asks for one asks at the end of the step.
void ActivationLinks::flush() {
  for (auto& [link, on_their_way] : sent_)
    for (OnItsWay& each : on_their_way) waits_.wait(each.work, "pp send");
  sent_.clear();
}

}  // namespace lockstep::engine
