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

int member_at_fault(int peer, int size, const std::function<int(int)>& waits_for) {
  int member = peer;
  for (int step = 0; step < size; ++step) {
    const int next = waits_for(member);
    if (next < 0) return member;
    member = next;
  }
  return peer;
}

PeerLostError lost_member(const MemberReport& lost, const MemberReport& own, const std::string& group,
                          double waited_seconds) {
  using State = MemberReport::State;
  const std::string call = cat(own.call, " of group ", group);
  std::string what = cat("rank ", lost.rank);
  switch (lost.state) {
    case State::kDied:
      what += cat(" (process ", lost.pid, ") died; ", call, " lacks it");
      break;
    case State::kNeverJoined:
      what += cat(" never joined the job; ", call, " lacks it");
      break;
    case State::kNeverMadeGroup:
      what += cat(" has not made the group yet; ", call, " lacks it");
      break;
    case State::kSilent:
      what += cat(" does not answer (stopped, or its host is lost); ", call, " lacks it");
      break;
    case State::kClosed:
      what += cat(" has closed the group; ", call, " lacks it");
      break;
    case State::kThere:
      what += cat(lost.sequence < own.sequence ? " never entered " : " does not go on with ", call);
      break;
  }
  if (!lost.call.empty())
    what += cat(lost.inside ? "; last seen when it entered " : "; last seen when it left ", lost.call, " ",
                format_duration(lost.seconds_ago), " ago");
  else if (lost.state == State::kThere || lost.state == State::kClosed)
    what += "; it has made no call on this group";
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
