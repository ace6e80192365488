// The communicators of a rank, one per group of the mesh that a program uses.
#pragma once

#include <memory>

#include "lockstep/comm/world.h"
#include "lockstep/mesh/mesh.h"
#include "lockstep/program/ledger.h"

namespace lockstep::engine {

class Groups {
 public:
  // Collective over all ranks of the world. ConfigError LS1102 where the mesh has another size than the world.
  Groups(comm::World& world, const mesh::Mesh& mesh);

  comm::Communicator& data() { return *data_; }    // axis "dp": same model part, other samples
  comm::Communicator& world() { return *world_; }  // axis "world": checkpoints, stopping together
  int rank() const { return rank_; }

  // What this rank communicated over all groups since the last call.
  program::Ledger take_ledger();

 private:
  int rank_;
  std::unique_ptr<comm::Communicator> data_;
  std::unique_ptr<comm::Communicator> world_;
};

}  // namespace lockstep::engine
