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
#include "lockstep/config/run_config.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/nn/linear.h"

namespace lockstep::parallel {

struct DispatchOptions {
  bool overlap = true;  // rows travel while the caller works
  config::Dispatcher dispatcher = config::Dispatcher::kAllToAll;
  // Of a hierarchical one: members of equal place on all nodes, and those of this node, which are neighbours. They outlive the group.
  comm::Communicator* nodes = nullptr;
  comm::Communicator* node = nullptr;
  int64_t limit = 0;  // rows that a rank has room for at once; 0: for all that may come
  int64_t slots = 0;  // > 0: messages have so many rows for each expert, filled or not, and no counts are told
};

// Member m of the ep x etp ranks holds part m / etp of the experts, and of each of them part m % etp of its inner width.
// Not thread-safe: one per rank. A group of one makes no calls.
class ExpertGroup {
 public:
  // The communicator, which outlives the group, has ep * etp ranks; InternalError else, and where nodes do not make up these.
  ExpertGroup(comm::Communicator& communicator, int ep, int etp, const DispatchOptions& options = {});

  int ep() const { return ep_; }
  int etp() const { return etp_; }
  int size() const { return communicator_.size(); }
  int rank() const { return communicator_.rank(); }
  const DispatchOptions& options() const { return options_; }
  bool spreads_tokens() const { return options_.dispatcher != config::Dispatcher::kAllToAll && size() > 1; }
  int ep_rank() const { return communicator_.rank() / etp_; }
  int etp_rank() const { return communicator_.rank() % etp_; }
  // Of E experts, those of an ep rank; InternalError where ep does not divide E.
  mesh::Range experts_of(int64_t experts, int ep_rank) const;
  mesh::Range experts_here(int64_t experts) const { return experts_of(experts, ep_rank()); }

  enum class Over { kAll, kNodes, kNode };

  // mine of every rank, as many numbers each -> by rank. Returns when all have come.
  std::vector<std::vector<int64_t>> gather_counts(const std::vector<int64_t>& mine, const program::CallId& id);
  // The same of up to `most` numbers each: [size(), most] fp64 of the host, zeros behind them.
  at::Tensor gather_numbers(const std::vector<double>& mine, int64_t most, const program::CallId& id);
  // rows [sum of sent, D] -> [sum of received, D], as Communicator::all_to_all_v has them.
  nn::Pending exchange(const at::Tensor& rows, const std::vector<int64_t>& sent, const std::vector<int64_t>& received,
                       const program::CallId& id, Over over = Over::kAll);
  // rows [T, ...] of every rank, at most `most` -> [size() most, ...]; what is beyond T is zero.
  nn::Pending gather_rows(const at::Tensor& rows, int64_t most, const program::CallId& id);
  // The inverse: [size() most, ...], summed over the ranks in their order -> [most, ...].
  nn::Pending scatter_rows(const at::Tensor& sums, const program::CallId& id);

  // Seconds that this rank waited for its peers, by what it waited for ("all_to_all", ...); since the last call.
  std::map<std::string, double> take_exposed() { return std::exchange(exposed_, {}); }

 private:
  comm::Communicator& over(Over over);
  comm::CallOptions call(const program::CallId& id) const;
  nn::Pending pending(comm::Work work, const char* what, at::Tensor result);

  comm::Communicator& communicator_;
  const int ep_;
  const int etp_;
  const DispatchOptions options_;
  std::map<std::string, double> exposed_;
};

}  // namespace lockstep::parallel
