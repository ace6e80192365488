// UNSHARD, RESHARD, PULL, and FETCH and EVICT of parameters: parameters on their way to this rank's device, and what waits
// for them.
#pragma once

#include <map>
#include <span>

#include "lockstep/engine/copy_queue.h"
#include "lockstep/engine/exposed_waits.h"
#include "lockstep/engine/groups.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/program/program.h"

namespace lockstep::engine {

class ParameterGather {
 public:
  // The references outlive this.
  // `copies`: null where nothing is offloaded.
  ParameterGather(const program::Layout& layout, ParameterStore& store, Groups& groups, ExposedWaits& waits,
                  CopyQueue* copies);

  // Starts the all-gather of a unit (the layer that owns it), into memory that it takes where the unit has none.
  void unshard(int layer);
  // Gives the memory of a gathered unit back.
  void reshard(int layer);
  // Starts the copy of this rank's part of a unit from the host, into memory that it takes where the part has none.
  void fetch(int layer);
  // Gives the memory of a fetched part back: it did not change.
  void evict(int layer);
  // Starts the broadcast of a bucket's parameters from the server.
  void pull(const program::Bucket& bucket, int index);

  // Waits for what is on its way to these units; to all of them.
  void ready(std::span<const int> layers);
  void ready();


 private:
  void fetched(int layer);
  // The memory that a fetch fills and an evict gives back; null where it stays.
  UnitBuffers* fetched_memory();

  ParameterStore& store_;
  Groups& groups_;
  ExposedWaits& waits_;
  CopyQueue* copies_;
  std::vector<std::string> names_;              // of layers
  std::map<int, Copy> fetches_;                 // by layer
  std::map<int, comm::Work> in_flight_;         // by layer; a pulled bucket under each of its layers
};

}  // namespace lockstep::engine
