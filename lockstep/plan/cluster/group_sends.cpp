#include "lockstep/plan/cluster/group_sends.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/mesh/placement.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::plan {
namespace {

using program::Algorithm;
using program::Collective;
using program::CollectiveCall;

// Which of its own chunk every member sends to every other, and which of theirs; `whole`: the buffer.
struct AllToAll {
  bool own = false, theirs = false, whole = false;
  bool is() const { return own || theirs || whole; }
};
AllToAll all_to_all(const CollectiveCall& call) {
  if (call.algorithm == Algorithm::kExchange) return {.whole = true};
  if (call.algorithm != Algorithm::kDirect) return {};
  switch (call.collective) {
    case Collective::kAllGather:
      return {.own = true};
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return {.theirs = true};
    case Collective::kAllReduce:
    case Collective::kBarrier:
      return {.own = true, .theirs = true};
    default:
      return {};
  }
}

bool synchronises(program::Purpose purpose) {
  using enum program::Purpose;
  return purpose == kUnshard || purpose == kReduceGrad || purpose == kReduceShard || purpose == kPush || purpose == kPull;
}

// Of calls that send the same: how many layers or buckets there are does not matter.
using Alike = std::tuple<program::GroupRef, bool, Collective, Algorithm, int64_t, int64_t, int>;

}  // namespace

void GroupSends::add(const CollectiveCall& call, double times) {
  const auto size = static_cast<int>(call.group.size());
  const AllToAll pairs = all_to_all(call);
  if (pairs.is()) {
    by_sender.resize(call.group.size());
    by_receiver.resize(call.group.size());
    const bool barrier = call.collective == Collective::kBarrier;
    const int64_t element_size = barrier ? program::payload(call) : call.element_size, numel = barrier ? 1 : call.numel;
    double all = 0, own = 0;  // what place 0 sends
    for (int place = 0; place < size; ++place) {
      const auto at = static_cast<size_t>(place);
      const auto chunk = static_cast<double>(mesh::shard_range(numel, size, place).size() * element_size);
      const double sends = (pairs.own ? chunk : 0) + (pairs.whole ? static_cast<double>(program::payload(call)) : 0), gets = pairs.theirs ? chunk : 0;
      by_sender[at] += times * sends;
      by_receiver[at] += times * gets;
      if (place == 0) own = sends;
      if (place > 0) all += own + gets;
    }
    LOCKSTEP_CHECK_EQ(all, static_cast<double>(program::predicted_bytes(call, 0)), program::collective_name(call.collective));
    return;
  }
  CollectiveCall by_place = call;
  std::iota(by_place.group.begin(), by_place.group.end(), 0);
  std::vector<Send> sent;
  for (int place = 0; place < size; ++place) {
    sent.clear();
    for (const auto& [to, bytes] : program::predicted_sends(by_place, place)) sent.push_back({.to = to, .bytes = times * static_cast<double>(bytes)});
    add_sends(size, place, sent);
  }
}

void GroupSends::add_sends(int size, int from, const std::vector<Send>& sent) {
  others.resize(static_cast<size_t>(size));
  std::vector<Send>& known = others[static_cast<size_t>(from)];
  size_t at = 0;
  for (const Send& send : sent) {
    while (at < known.size() && known[at].to < send.to) ++at;
    if (at == known.size() || known[at].to != send.to) known.insert(known.begin() + static_cast<ptrdiff_t>(at), {.to = send.to});
    known[at].bytes += send.bytes;
  }
}

std::vector<GroupSends> sends_of_class(const program::Layout& layout, const std::vector<program::RepeatedCalls>& calls) {
  std::map<Alike, std::pair<const program::CallOfRank*, int64_t>> alike;
  for (const program::RepeatedCalls& repeated : calls) {
    if (program::differs_by_shard(layout, repeated.action)) continue;
    for (const program::CallOfRank& planned : repeated.calls) {
      const CollectiveCall& call = planned.call;
      const bool synchronise = synchronises(planned.key.id.purpose);
      auto& [one, times] = alike[{planned.group, synchronise, call.collective, call.algorithm, call.numel, call.element_size, call.root}];
      one = &planned;
      times += repeated.times;
    }
  }
  std::map<std::pair<program::GroupRef, bool>, GroupSends> groups;
  for (const auto& [key, calls_alike] : alike) {
    const auto& [planned, times] = calls_alike;
    if (planned->call.collective == Collective::kRecv) continue;
    GroupSends& group = groups[{planned->group, std::get<1>(key)}];
    group.group = planned->group;
    group.axis = planned->key.axis;
    group.synchronises = std::get<1>(key);
    group.add(planned->call, static_cast<double>(times));
  }
  std::vector<GroupSends> found;
  for (auto& [key, group] : groups) found.push_back(std::move(group));
  return found;
}

}  // namespace lockstep::plan
