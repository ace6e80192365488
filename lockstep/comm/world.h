// All ranks of the job, seen from one of them: makes the communicator of any group. A backend is one implementation;
// its users see only this.
#pragma once

#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // A communicator over `ranks` (world ranks in group order, this one among them). Collective over those ranks: all of
  // them call it, in the same order of groups. `axis` names it in ledgers and messages.
  virtual std::unique_ptr<Communicator> communicator(const std::vector<int>& ranks, const std::string& axis) = 0;
  // Over all ranks.
  std::unique_ptr<Communicator> all_ranks(const std::string& axis) {
    std::vector<int> ranks(static_cast<size_t>(size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return communicator(ranks, axis);
  }
  // Releases every peer that waits for this rank: their waits end with PeerLostError carrying `reason`.
  virtual void abort(const std::string& reason) = 0;
  virtual std::string backend() const = 0;
  // What the making of groups has taken so far, for a log: "nccl: 5 groups joined in 3.2 s (NCCL 2.30.7)". Empty where it
  // takes no time worth a line.
  virtual std::string startup() const { return {}; }
};

}  // namespace lockstep::comm
