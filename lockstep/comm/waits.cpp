#include "lockstep/comm/waits.h"

#include <algorithm>

#include "lockstep/base/text.h"

namespace lockstep::comm {

std::optional<GroupWait> kept_by(const std::vector<GroupWait>& waits, uint64_t group) {
  const auto on_group = [&](const GroupWait& wait) { return wait.group == group && wait.waits_for >= 0; };
  const auto there = std::find_if(waits.begin(), waits.end(), on_group);
  if (there != waits.end()) return *there;
  const auto elsewhere =
      std::find_if(waits.begin(), waits.end(), [](const GroupWait& wait) { return wait.awaited && wait.waits_for >= 0; });
  return elsewhere == waits.end() ? std::nullopt : std::optional(*elsewhere);
}

std::vector<Waiting> follow_waits(const Waiting& first,
                                  const std::function<std::optional<GroupWait>(const Waiting&)>& next) {
  std::vector<Waiting> chain = {first};
  for (;;) {
    const int rank = chain.back().waits_for;
    const bool met = std::any_of(chain.begin(), chain.end(), [&](const Waiting& wait) { return wait.rank == rank; });
    if (met) return {first};
    const std::optional<GroupWait> wait = next(chain.back());
    if (!wait) return chain;
    chain.push_back({.rank = rank, .waits_for = wait->waits_for, .group = wait->group, .call = wait->call});
  }
}

std::string waits_text(const std::vector<Waiting>& chain) {
  std::string text = cat("rank ", chain.front().rank);
  for (const Waiting& wait : chain)
    text += cat(&wait == &chain.front() ? "" : ", which", " waits for rank ", wait.waits_for, " (", wait.call, ")");
  return text;
}

}  // namespace lockstep::comm
