// The communicators of a rank, one per group that its steps use (program/groups.h), and planned calls over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/world.h"
#include "lockstep/program/layout.h"
#include "lockstep/program/ledger.h"
#include "lockstep/program/planned_calls.h"

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
  comm::Communicator* tensor() { return several(mesh::Axis::kTp); }  // same tokens, other parts of layers
  comm::Communicator* shared_heads();                                // the same key/value heads as well
  comm::Communicator* experts();                                     // share the experts of a layer; null where one has all
  comm::Communicator* expert_nodes();                                // of them, one on each node; null without a hierarchical dispatcher
  comm::Communicator* expert_node();                                 // and those of one node
  comm::Communicator* context();                                     // hold parts of the same sequences; null where one has them whole
  comm::Communicator* context_inner();                               // of them, with context 2d, those that exchange heads for tokens
  comm::Communicator* context_outer();                               // and those of equal place among these, a ring
  comm::Communicator& replica();                                     // all that train together: they agree on loss and norm
  comm::Communicator* tied();                                        // the other rank that holds the same unit; null: none
  comm::Communicator& world();                                       // checkpoints, stopping together

  // Each with its name, for reports.
  std::vector<std::pair<std::string, comm::Communicator*>> all();
  int rank() const { return rank_; }

  // What this rank communicated over all groups since the last call.
  program::Ledger take_ledger();

 private:
  int rank_;
  program::Layout layout_;
  // In the order of program::groups_of, so that whoever makes a group waits for nobody who waits for it.
  std::vector<std::pair<program::GroupRef, std::unique_ptr<comm::Communicator>>> made_;
};

struct CallTensors {
  at::Tensor input{};   // the one tensor of all_reduce, reduce, broadcast, send and recv
  at::Tensor output{};  // of all_gather, reduce_scatter and all_to_all
};
// Makes a planned call: collective, group, algorithm, root and id are those of the plan, tensors are bound to it here.
// `blocking` as comm::CallOptions has it. InternalError where the tensors are not what was planned; only transfers may be of
// another size, as in an evaluation.
comm::Work execute(Groups& groups, const program::PlannedCall& call, const CallTensors& tensors, bool blocking = false);

}  // namespace lockstep::engine
