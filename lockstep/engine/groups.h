// The communicators of a rank, one per group of the mesh that a program uses.
#pragma once

#include <map>
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
  comm::Communicator& replica();  // all axes over which one model is trained: they agree on loss and norm
  comm::Communicator* model();    // axes "pp" and "tp" together: one copy of the model; null where that is one rank
  comm::Communicator* tied() { return tied_.get(); }  // axis "tied": the other rank that holds the same unit (Layout::tied_peer)
  // A channel of axis "pp" from one rank to another, of activations or of their gradients; this rank is one of the two.
  // The sender is its member 0.
  comm::Communicator& link(int from, int to, bool forward);

  // Each with its name, for reports.
  std::vector<std::pair<std::string, comm::Communicator*>> all();
  int rank() const { return rank_; }

  // What this rank communicated over all groups since the last call.
  program::Ledger take_ledger();

 private:
  int rank_;
  bool sharded_, replicated_;
  // Null where the axis has one rank; replica_ also where data_ or model_ are all of it, model_ where tensor_ is.
  std::unique_ptr<comm::Communicator> data_, tensor_, shared_heads_, replica_, model_, tied_;
  std::unique_ptr<comm::Communicator> dp_shard_, dp_replicate_;  // where both have several ranks; else data_ is the one
  struct Link {
    int from = 0, to = 0;
    bool forward = true;
    auto operator<=>(const Link&) const = default;
  };
  std::map<Link, std::unique_ptr<comm::Communicator>> links_;
  std::unique_ptr<comm::Communicator> world_;

  void link_stages(comm::World& world, const program::Layout& layout);
};

}  // namespace lockstep::engine
