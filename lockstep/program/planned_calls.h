// The calls that an action makes, planned.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "lockstep/program/ledger.h"
#include "lockstep/program/program.h"
#include "lockstep/program/summation.h"

namespace lockstep::program {

// What each kind of action calls stands in planned_calls.cpp; sums are made as summation.h says. The engine executes these very
// objects; who counts bytes asks for CallOfRank.
struct PlannedCall {
  CallId id{};
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kDirect;
  SumOrder order = SumOrder::kNone;
  GroupRef group{};
  int root = kServerRank;    // of broadcast and reduce; the peer of send and recv: a group index
  int64_t numel = 0;         // of the full buffer, as CollectiveCall has it
  int64_t element_size = 8;  // on the wire
  int64_t bytes() const { return numel * element_size; }
};
// The communication of one action on `rank`, in order; nothing where it makes none or its group has one rank.
std::vector<PlannedCall> planned_calls(const Layout& layout, const Program& program, int rank, const Action& action);

// The same of all actions of a rank: planned once for all microbatches. What it is made with outlives it.
class CallTable {
 public:
  CallTable(const Layout& layout, const Program& program, int rank);
  ~CallTable();
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  const std::vector<PlannedCall>& of(const Action& action);  // valid as long as the table
  // The one call of an action that makes at most one; null: none.
  const PlannedCall* only(const Action& action);

 private:
  class Planner;
  std::unique_ptr<Planner> planner_;
  std::map<Action, std::vector<PlannedCall>> known_;
};

// A planned call as a rank takes part in it, for ledger and links.
struct CallOfRank {
  LedgerKey key{};
  CollectiveCall call{};
  GroupRef group{};    // that of the call
  int group_rank = 0;  // of this rank in it
};
CallOfRank call_of_rank(const Layout& layout, int rank, const PlannedCall& planned);
std::vector<CallOfRank> calls_of_rank(const Layout& layout, const Program& program, int rank, const Action& action);

// Elements of REDUCE_PARTIAL: of parameters that every rank of the tp axis holds, and of those that `copies` ranks share.
struct PartialGradients {
  int64_t of_axis = 0;
  int64_t of_copies = 0;
  int copies = 1;
};
PartialGradients partial_gradients(const std::vector<arch::ParamSpec>& table);
// Of these, what the rank's shard holds: with several shards each is summed by its owner.
PartialGradients partial_gradients(const Layout& layout, int rank);

}  // namespace lockstep::program
