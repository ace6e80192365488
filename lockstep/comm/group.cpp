#include "lockstep/comm/group.h"

#include <algorithm>
#include <set>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {

std::string group_name(const std::string& axis, const std::vector<int>& ranks) {
  std::vector<std::string> numbers;
  for (const int rank : ranks) numbers.push_back(std::to_string(rank));
  return cat(axis, "[", join(numbers, ","), "]");
}

int group_rank(const std::string& axis, const std::vector<int>& ranks, int rank, int world_size) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank);
  LOCKSTEP_CHECK(own != ranks.end(), "rank ", rank, " is not in group ", group_name(axis, ranks));
  LOCKSTEP_CHECK(std::set<int>(ranks.begin(), ranks.end()).size() == ranks.size() &&
                     *std::min_element(ranks.begin(), ranks.end()) >= 0 &&
                     *std::max_element(ranks.begin(), ranks.end()) < world_size,
                 "group ", group_name(axis, ranks), " of ", world_size, " ranks");
  return static_cast<int>(own - ranks.begin());
}

namespace {

// What the rank has to do with the call that lacks it.
std::string state_text(const MemberReport& lost, const MemberReport& own, const std::string& call) {
  using State = MemberReport::State;
  switch (lost.state) {
    case State::kDied:
      return cat(" (process ", lost.pid, ") died; ", call, " lacks it");
    case State::kNeverJoined:
      return cat(" never joined the job; ", call, " lacks it");
    case State::kNeverMadeGroup:
      return cat(" has not made the group yet; ", call, " lacks it");
    case State::kSilent:
      return cat(" does not answer (stopped, or its host is lost); ", call, " lacks it");
    case State::kClosed:
      return cat(" has closed the group; ", call, " lacks it");
    case State::kThere:
      break;
  }
  return cat(lost.sequence < own.sequence ? " never entered " : " does not go on with ", call);
}

}  // namespace

PeerLostError lost_member(const MemberReport& lost, const MemberReport& own, const std::string& group,
                          double waited_seconds, const std::vector<Waiting>& chain) {
  using State = MemberReport::State;
  const bool elsewhere = !chain.empty() && chain.back().group != chain.front().group;
  const std::string call =
      elsewhere ? cat(chain.back().call, " of rank ", chain.back().rank) : cat(own.call, " of group ", group);
  std::string what = cat("rank ", lost.rank);
  what += elsewhere && lost.state == State::kThere ? cat(" keeps rank ", chain.back().rank, " waiting in ", chain.back().call)
                                                   : state_text(lost, own, call);
  if (lost.stopped) what += cat("; its process ", lost.pid, " is stopped");
  if (!lost.call.empty())
    what += cat(lost.inside ? "; last seen when it entered " : "; last seen when it left ", lost.call, " ",
                format_duration(lost.seconds_ago), " ago");
  else if (lost.state == State::kThere || lost.state == State::kClosed)
    what += elsewhere ? "; it has made no call" : "; it has made no call on this group";
  if (chain.size() > 1) what += cat("\n  ", waits_text(chain));
  what += cat("\n  rank ", own.rank, " has waited ", format_duration(waited_seconds));
  return PeerLostError(
      {.code = "LS3002", .what = what, .way_out = cat("the log of rank ", lost.rank, " may say why")});
}

PeerLostError stopped_by(int by, const std::string& reason, const MemberReport& own, const std::string& group) {
  return PeerLostError({.code = "LS3003",
                        .what = cat("rank ", by, " stopped the job while rank ", own.rank, " was in ", own.call,
                                    " of group ", group, ":\n  ", reason)});
}

}  // namespace lockstep::comm
