// The communicators of a rank, one per group that its steps use (program/groups.h).
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

  // Of one group; InternalError where program::groups_of has none such.
  comm::Communicator& over(const program::GroupRef& group);
  // The same for the views of the layout; null where the group has one rank.
  comm::Communicator* several(const mesh::View& view);

  comm::Communicator& data();                                        // sums gradients: same part of the model, other tokens
  comm::Communicator* replicas() { return several(domain_.copies); }  // hold the same share of them
  comm::Communicator* tensor() { return several(mesh::Axis::kTp); }  // same tokens, other parts of layers
  comm::Communicator* shared_heads();                                // the same key/value heads as well
  comm::Communicator& replica();                                     // all that train together: they agree on loss and norm
  comm::Communicator* tied();                                        // the other rank that holds the same unit; null: none
  comm::Communicator& world();                                       // checkpoints, stopping together

  // Each with its name, for reports.
  std::vector<std::pair<std::string, comm::Communicator*>> all();
  int rank() const { return rank_; }

  // What this rank communicated over all groups since the last call.
  program::Ledger take_ledger();

 private:
  comm::Communicator* find(const program::GroupRef& group);

  int rank_;
  program::Layout layout_;
  program::Domain domain_;
  // In the order of program::groups_of, so that whoever makes a group waits for nobody who waits for it.
  std::vector<std::pair<program::GroupRef, std::unique_ptr<comm::Communicator>>> made_;
};

}  // namespace lockstep::engine
