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

  // UNSHARD, RESHARD and PULL.
  void add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets);
  // Starts the copy of this rank's part of a unit from the host, into memory that it takes where the
  // part has none.
  Started fetch(int id);
  // Gives the memory of a fetched part back: it did not change.
  void evict(int id);

 private:
  // Starts the all-gather of a unit, into memory that it takes where the unit has none.
  Started unshard(const program::Action& action);
  // Gives the memory of a gathered unit back.
  void reshard(int id);
  // Starts the broadcast of a bucket's parameters from the server.
  Started pull(const program::Bucket& bucket, const program::Action& action);
  // The memory that a fetch fills and an evict gives back; null where it stays.
  UnitBuffers* fetched_memory();

  const StepView step_;
  CopyQueue* copies_;
};

}  // namespace lockstep::engine
