#include "lockstep/train/replica_check.h"

#include <map>

#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"

namespace lockstep::train {
namespace {

// "samples consumed: 480 on ranks 0-2, 960 on rank 3".
std::vector<std::string> counter_differences(engine::Groups& groups, const ReplicaCheck& check) {
  std::vector<int64_t> mine;
  for (const auto& [name, value] : check.counters) mine.push_back(value);
  const auto all = comm::gather_numbers(groups.world(), "counters", mine);
  std::vector<std::string> found;
  for (size_t i = 0; i < check.counters.size(); ++i) {
    std::map<int64_t, std::vector<int>> ranks;
    for (size_t rank = 0; rank < all.size(); ++rank) ranks[all[rank][i]].push_back(static_cast<int>(rank));
    if (ranks.size() == 1) continue;
    std::vector<std::string> parts;
    for (const auto& [value, who] : ranks) parts.push_back(cat(value, " on ", comm::ranks_text(who)));
    found.push_back(cat(check.counters[i].first, ": ", join(parts, ", ")));
  }
  return found;
}

}  // namespace

bool replicas_due(const config::RunConfig& config, int64_t step) {
  const int64_t every = config.train.check_replicas_every;
  return every > 0 && step % every == 0;
}

void check_replicas(engine::Executor& executor, engine::Groups& groups, const ReplicaCheck& check) {
  if (groups.world().size() == 1) return;
  std::vector<std::string> found = counter_differences(groups, check);
  for (std::string& line : engine::replica_differences(executor, groups, {.with_disk = check.with_disk}))
    found.push_back(std::move(line));
  if (found.empty()) return;
  throw ReplicaError({.code = "LS5002",
                      .what = cat("ranks that must hold the same have drifted apart, seen at step ", check.step, "\n  ",
                                  join(found, "\n  ")),
                      .way_out = "nothing of it was saved: the same command goes on from the last checkpoint; a rank that "
                                 "is named again has bad memory or a bad device"});
}

}  // namespace lockstep::train
