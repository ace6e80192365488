// Sends that follow from what lies in a rank's shard (program::differs_by_shard): sums of partial gradients over tp, of which every shard holds
// others, and the pieces of matrices on their way to owners and back. Made once for the ranks of a class; nothing is planned rank by rank.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/plan/cluster/group_sends.h"

namespace lockstep::plan {

class ShardSends {
 public:
  // Of the class of `rank`; `calls` are those of `rank`. The layout outlives it.
  ShardSends(const program::Layout& layout, int rank, const std::vector<program::RepeatedCalls>& calls);

  // Those of the groups whose first member is `rank`, a rank of the class.
  void for_groups_led_by(int rank, const std::function<void(const GroupSends&)>& use);

 private:
  // Elements of REDUCE_PARTIAL in each shard of a parameter group.
  struct Partial {
    arch::ParameterGroup of = arch::ParameterGroup::kDense;
    std::vector<int64_t> over_tensor{}, over_copies{};
  };
  void find_partial(int rank);
  void find_matrices(int rank, const std::vector<program::RepeatedCalls>& calls);
  const GroupSends& partial_sums(const program::GroupRef& group, int64_t numel);

  const program::Layout& layout_;
  double partial_times_ = 0;  // REDUCE_PARTIAL in a step
  std::vector<Partial> partial_{};  // of groups that have some
  program::GroupRef tensor_{}, copies_{};
  std::map<std::pair<program::GroupRef, int64_t>, GroupSends> partial_sums_{};  // by elements
  std::vector<GroupSends> matrices_{};
};

}  // namespace lockstep::plan
