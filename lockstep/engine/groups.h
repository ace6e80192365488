// The communicators of a rank, one per group of the mesh that a program uses.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/program/layout.h"
#include "lockstep/program/ledger.h"

namespace lockstep::engine {

class Groups {
 public:
  // Collective over all ranks of the world. ConfigError LS1102 where the mesh has another size than the world.
  Groups(comm::World& world, const program::Layout& layout);

  comm::Communicator& data() { return *data_; }    // axis "dp": same model part, other samples
  // The ranks that share out this rank's states, and those that hold the same share; null where there is one.
  comm::Communicator* shard() { return sharded_ ? dp_shard_ ? dp_shard_.get() : data_.get() : nullptr; }
  comm::Communicator* replicas() { return replicated_ ? dp_replicate_ ? dp_replicate_.get() : data_.get() : nullptr; }
  comm::Communicator& world() { return *world_; }  // axis "world": checkpoints, stopping together
  comm::Communicator* tensor() { return tensor_.get(); }            // axis "tp": same samples, other parts of layers
  comm::Communicator* shared_heads() { return shared_heads_.get(); }  // axis "kv": same key/value heads as well
  comm::Communicator& replica();  // data and tensor axes together: they agree on loss and norm

  // Each with its name, for reports.
  std::vector<std::pair<std::string, comm::Communicator*>> all();
  int rank() const { return rank_; }

  // What this rank communicated over all groups since the last call.
  program::Ledger take_ledger();

 private:
  int rank_;
  bool sharded_, replicated_;
  // Null where the axis has one rank; replica_ also where data_ or tensor_ are all of it.
  std::unique_ptr<comm::Communicator> data_, tensor_, shared_heads_, replica_;
  std::unique_ptr<comm::Communicator> dp_shard_, dp_replicate_;  // where both have several ranks; else data_ is the one
  std::unique_ptr<comm::Communicator> world_;
};

}  // namespace lockstep::engine
