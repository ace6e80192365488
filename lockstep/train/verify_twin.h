// The one-rank twin of `verify`, and what the ranks of a layout hold, put together as one rank has it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "lockstep/engine/executor.h"

namespace lockstep::train {

// [row of the model's table]: whole tensors, fp32 on the host; views of the executor's own memory where it has them so.
// Values are the masters, gradients those of the mean loss before clipping.
struct WholeState {
  std::vector<at::Tensor> gradients, values;
  std::vector<std::vector<at::Tensor>> slots;  // [slot of arch::slots_of][row]; empty where they were not asked for, undefined where a row has none
};

struct CollectOptions {
  bool keep = true;    // this rank gets the result; the others only take part
  bool slots = false;  // alike on all ranks
};
// Collective over the world.
WholeState collect(engine::Executor& executor, engine::Groups& groups, const CollectOptions& options);

// A rank alone, in the process of another.
class Twin {
 public:
  // `options.layout` is of one rank.
  explicit Twin(engine::ExecutorOptions options);

  engine::Executor& executor() { return *executor_; }
  // With slots.
  WholeState state() { return collect(*executor_, *groups_, {.slots = true}); }
  // Values and slots become those of `state`.
  void adopt(const WholeState& state);

 private:
  std::unique_ptr<comm::World> world_;
  std::unique_ptr<engine::Groups> groups_;
  std::unique_ptr<engine::Executor> executor_;
};

}  // namespace lockstep::train
