// The ranks that hold the experts of one block together (GShard, Lepikhin et al. 2020; cut by inner width too: MoE Parallel
// Folding, Liu et al. 2025), and the calls between them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/nn/linear.h"

namespace lockstep::parallel {

// Member m of the ep x etp ranks holds part m / etp of the experts, and of each of them part m % etp of its inner width.
// Not thread-safe: one per rank. A group of one makes no calls.
class ExpertGroup {
 public:
  // The communicator, which outlives the group, has ep * etp ranks; InternalError else. overlap: rows travel while the caller works.
  ExpertGroup(comm::Communicator& communicator, int ep, int etp, bool overlap = true);

  int ep() const { return ep_; }
  int etp() const { return etp_; }
  int size() const { return communicator_.size(); }
  int ep_rank() const { return communicator_.rank() / etp_; }
  int etp_rank() const { return communicator_.rank() % etp_; }
  // Of E experts, those of an ep rank; InternalError where ep does not divide E.
  mesh::Range experts_of(int64_t experts, int ep_rank) const;
  mesh::Range experts_here(int64_t experts) const { return experts_of(experts, ep_rank()); }

  // mine [E] of every rank -> by rank. Returns when all have come.
  std::vector<std::vector<int64_t>> gather_counts(const std::vector<int64_t>& mine, const program::CallId& id);
  // rows [sum of sent, D] -> [sum of received, D], as Communicator::all_to_all_v has them.
  nn::Pending exchange(const at::Tensor& rows, const std::vector<int64_t>& sent, const std::vector<int64_t>& received,
                       const program::CallId& id);

  // Seconds that this rank waited for its peers, by what it waited for ("all_to_all", ...); since the last call.
  std::map<std::string, double> take_exposed() { return std::exchange(exposed_, {}); }

 private:
  comm::Communicator& communicator_;
  const int ep_;
  const int etp_;
  const bool overlap_;
  std::map<std::string, double> exposed_;
};

}  // namespace lockstep::parallel
