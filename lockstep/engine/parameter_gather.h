// UNSHARD, RESHARD, PULL, and FETCH and EVICT of parameters: parameters on their way to this rank's device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/execute.h"
#include "lockstep/engine/exposed_waits.h"
#include "lockstep/engine/groups.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class ParameterGather {
 public:
  // The references outlive this; `copies`: null where nothing is offloaded.
  ParameterGather(const program::Layout& layout, ParameterStore& store, Groups& groups, program::CallTable& calls,
                  ExposedWaits& waits, CopyQueue* copies);

  // UNSHARD, RESHARD and PULL.
  void add_handlers(Handlers& handlers, std::span<const program::Bucket> buckets);
  // Starts the copy of this rank's part of a unit (the layer that owns it) from the host, into memory that it takes where the
  // part has none.
  Started fetch(int layer);
  // Gives the memory of a fetched part back: it did not change.
  void evict(int layer);

 private:
  // Starts the all-gather of a unit, into memory that it takes where the unit has none.
  Started unshard(const program::Action& action);
  // Gives the memory of a gathered unit back.
  void reshard(int layer);
  // Starts the broadcast of a bucket's parameters from the server.
  Started pull(const program::Bucket& bucket, const program::Action& action);
  // The memory that a fetch fills and an evict gives back; null where it stays.
  UnitBuffers* fetched_memory();

  ParameterStore& store_;
  Groups& groups_;
  program::CallTable& calls_;
  ExposedWaits& waits_;
  CopyQueue* copies_;
  std::vector<std::string> names_;  // of layers
};

}  // namespace lockstep::engine
