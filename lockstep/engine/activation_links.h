// SEND_F, RECV_F, SEND_B, RECV_B: what a stage of a pipeline hands over to its neighbours on other ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>

#include "lockstep/engine/exposed_waits.h"
#include "lockstep/engine/groups.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

// A tensor on its way is alive until it has been sent: at most one of a channel, since the next one waits for it.
class ActivationLinks {
 public:
  ActivationLinks(const program::Layout& layout, Groups& groups, ExposedWaits& waits);

  // SEND_*: of the action's stage on this rank.
  void send(const program::Action& action, at::Tensor tensor);
  // RECV_*: begins to fill `tensor`, which take() hands out under `layer`, the one that needs it.
  void recv(const program::Action& action, int layer, at::Tensor tensor);
  // What comes for the layer and microbatch, once it is there; undefined where nothing was asked for.
  at::Tensor take(int layer, int microbatch);
  // What was sent has arrived.
  void flush();

 private:
  struct OnItsWay {
    at::Tensor tensor;
    comm::Work work;
  };
  const program::Layout& layout_;
  Groups& groups_;
  ExposedWaits& waits_;
  std::map<comm::Communicator*, OnItsWay> sent_;
  std::map<std::pair<int, int>, OnItsWay> coming_;  // layer, microbatch
};

}  // namespace lockstep::engine
