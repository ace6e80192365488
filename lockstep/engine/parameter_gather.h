// UNSHARD, RESHARD, PULL, and FETCH and EVICT of parameters: parameters on their way to this rank's device.
#pragma once

#include <span>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/step_state.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class ParameterGather {
 public:
  // `copies` outlives this; null where nothing is offloaded.
  ParameterGather(const StepView& step, CopyQueue* copies);

  void add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets);

 private:
  // Both into memory that they take where the unit, or this rank's part of it, has none.
  Started unshard(const program::Action& action);
  Started fetch(int id);
  // The memory that a fetch fills and an evict gives back; null where it stays.
  UnitBuffers* fetched_memory(size_t unit);

  const StepView step_;
  CopyQueue* copies_;
};

}  // namespace lockstep::engine
