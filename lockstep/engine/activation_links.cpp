#include "lockstep/engine/activation_links.h"

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Action;

ActivationLinks::ActivationLinks(const program::Layout& layout, int depth, Groups& groups, program::CallTable& calls,
                                 ExposedWaits& waits)
    : layout_(layout), depth_(depth), groups_(groups), calls_(calls), waits_(waits) {}

const program::PlannedCall& ActivationLinks::call_of(const Action& action) {
  const program::PlannedCall* call = calls_.only(action);
  LOCKSTEP_CHECK(call != nullptr, program::action_name(action.kind), " of stage ", action.stage, " stays on this rank");
  return *call;
}

Started ActivationLinks::send(const Action& action, at::Tensor tensor) {
  LOCKSTEP_CHECK(tensor.defined(), program::action_name(action.kind), " of stage ", action.stage, " has nothing to send");
  if (tensor.numel() == 0) return [] {};  // no row of the sequence is this rank's
  const program::PlannedCall& call = call_of(action);
  std::deque<OnItsWay>& on_their_way = sent_[call.group];
  if (std::ssize(on_their_way) == depth_) {
    waits_.wait(on_their_way.front().work, "pp send");
    on_their_way.pop_front();
  }
  OnItsWay& last = on_their_way.emplace_back(OnItsWay{.tensor = std::move(tensor), .work = {}});
  last.work = execute(groups_, call, {.input = last.tensor});
  return [this] { flush(); };
}

Started ActivationLinks::recv(const Action& action, at::Tensor tensor) {
  const bool forward = program::transfer_of(action).forward;
  const auto [begin, end] = layout_.stage_layers(action.stage);
  const Flow flow{forward ? begin : end - 1, action.microbatch, !forward};
  const auto [place, fresh] = coming_.try_emplace(flow);
  LOCKSTEP_CHECK(fresh, "stage ", action.stage, " waits for microbatch ", action.microbatch, " already");
  place->second.tensor = std::move(tensor);
  if (place->second.tensor.numel() == 0) return [] {};
  place->second.work = execute(groups_, call_of(action), {.input = place->second.tensor});
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
