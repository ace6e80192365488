// SEND_F, RECV_F, SEND_B, RECV_B: what a stage of a pipeline hands over to its neighbours on other ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>

#include "lockstep/engine/execute.h"
#include "lockstep/engine/exposed_waits.h"
#include "lockstep/engine/groups.h"
#include "lockstep/engine/joins.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

// What a layer takes next of a microbatch: its input, or the gradient of its output.
struct Flow {
  int layer = 0;
  int microbatch = 0;
  bool gradient = false;
  auto operator<=>(const Flow&) const = default;
};

// A tensor on its way is alive until it has been sent: at most `depth` of a channel, since a further one waits for the first
// of them. What was sent first arrives first.
class ActivationLinks {
 public:
  // depth: Program::channel_depth.
  ActivationLinks(const program::Layout& layout, int depth, Groups& groups, program::CallTable& calls, ExposedWaits& waits);

  // SEND_*: of the action's stage on this rank.
  Started send(const program::Action& action, at::Tensor tensor);
  // RECV_*: begins to fill `tensor`, which take() hands out to the layer of the stage that needs it.
  Started recv(const program::Action& action, at::Tensor tensor);
  // What was received, once it was joined; undefined where nothing was asked for.
  at::Tensor take(const Flow& flow);
  // Throws away what was received and nobody took.
  void drop() { coming_.clear(); }

 private:
  struct OnItsWay {
    at::Tensor tensor;
    comm::Work work;
  };
  void flush();
  const program::PlannedCall& call_of(const program::Action& action);

  const program::Layout& layout_;
  const int depth_;
  Groups& groups_;
  program::CallTable& calls_;
  ExposedWaits& waits_;
  std::map<program::GroupRef, std::deque<OnItsWay>> sent_;
  std::map<Flow, OnItsWay> coming_;
};

}  // namespace lockstep::engine
