#include "lockstep/train/replica_check.h"

#include <array>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"

namespace lockstep::train {
namespace {

// "samples consumed: 480 on ranks 0-2, 960 on rank 3".
std::vector<std::string> counter_differences(engine::Groups& groups, const RunPosition& at) {
  constexpr std::array kCounters = {"steps", "samples consumed", "tokens consumed"};
  const auto all = comm::gather_numbers(groups.world(), program::call_id(program::Purpose::kReplicaCounters), {at.step, at.consumed_samples, at.consumed_tokens});
  std::vector<std::string> found;
  for (size_t i = 0; i < kCounters.size(); ++i) {
    std::map<int64_t, std::vector<int>> ranks;
    for (size_t rank = 0; rank < all.size(); ++rank) ranks[all[rank][i]].push_back(static_cast<int>(rank));
    if (ranks.size() == 1) continue;
    std::vector<std::string> parts;
    for (const auto& [value, who] : ranks) parts.push_back(cat(value, " on ", comm::ranks_text(who)));
    found.push_back(cat(kCounters[i], ": ", join(parts, ", ")));
  }
  return found;
}

}  // namespace

void check_replicas(engine::Executor& executor, engine::Groups& groups, const RunPosition& at, bool with_disk) {
  if (groups.world().size() == 1) return;
  std::vector<std::string> found = counter_differences(groups, at);
  for (std::string& line : engine::replica_differences(executor, groups, with_disk))
    found.push_back(std::move(line));
  if (found.empty()) return;
  throw ReplicaError({.code = "LS5002",
                      .what = cat("ranks that must hold the same have drifted apart, seen at step ", at.step, "\n  ",
                                  join(found, "\n  ")),
                      .way_out = "nothing of it was saved: the same command goes on from the last checkpoint; a rank that "
                                 "is named again has bad memory or a bad device"});
}

void ReplicaPolicy::compare(const RunPosition& at, bool saves) {
  if (compared_at_ == at.step && !(saves && on_disk_)) return;
  check_(at, saves);
  compared_at_ = at.step;
}

}  // namespace lockstep::train
