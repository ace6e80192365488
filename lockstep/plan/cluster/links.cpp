#include "lockstep/plan/cluster/links.h"

#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/plan/cluster/link_counter.h"
#include "lockstep/plan/cluster/shard_sends.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::plan {
namespace {

// What the groups of a class send.
struct ClassSends {
  std::vector<GroupSends> groups;
  std::optional<ShardSends> by_shard;
};

// The calls of a class are planned for its first rank; the groups of another rank are the same, moved.
Traffic count(const program::Layout& layout, const program::Program& program, const Placement& placement, const CallsOfStep& calls_of) {
  const program::RankClasses classes(program, layout);
  // Along tp nothing differs but the rows that go between stages.
  const bool equal_rows = layout.micro_batch * layout.tokens_here() % layout.mesh.degree(mesh::Axis::kTp) == 0;
  std::vector<std::optional<ClassSends>> known(classes.count());
  LinkCounter counter(placement, layout.mesh.world_size());
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::optional<ClassSends>& sends = known[equal_rows ? classes.row_of(rank) : classes.of(rank)];
    if (!sends) {
      const std::vector<program::RepeatedCalls> calls = calls_of(rank);
      sends.emplace(ClassSends{.groups = sends_of_class(layout, calls), .by_shard = std::nullopt});
      sends->by_shard.emplace(layout, rank, calls);
    }
    const auto add = [&](const GroupSends& group) { counter.add(group, program::group_ranks(layout, rank, group.group)); };
    // A group is counted once, at its first member.
    for (const GroupSends& group : sends->groups)
      if (program::group_rank(layout, rank, group.group) == 0) add(group);
    sends->by_shard->for_groups_led_by(rank, add);
  }
  return counter.traffic();
}

std::map<program::Action, int64_t> action_counts(const std::vector<program::Action>& list) {
  std::map<program::Action, int64_t> counts;
  for (const program::Action& action : list) counts[program::without_microbatch(action)] += 1;
  return counts;
}

// The calls of the longest step made, as often as the whole step has them.
std::vector<program::RepeatedCalls> calls_of_whole(const program::JudgedSteps& steps, int rank) {
  const program::MadeStep& last = steps.made.back();
  std::vector<program::RepeatedCalls> calls = program::repeated_calls(last.layout, last.program, rank);
  if (last.left_out == 0) return calls;
  const std::map<program::Action, int64_t> fewer = action_counts(steps.first().program.list(rank));
  for (program::RepeatedCalls& repeated : calls) {
    const auto of_first = fewer.find(repeated.action);
    const auto count = [&](const program::MadeStep& step) {
      if (&step == &last) return static_cast<double>(repeated.times);
      return of_first == fewer.end() ? 0 : static_cast<double>(of_first->second);
    };
    repeated.times = std::llround(steps.sum_of_step(count));
  }
  return calls;
}

}  // namespace

std::string_view link_name(LinkClass link) {
  switch (link) {
    case LinkClass::kDomain:
      return "NVLink";
    case LinkClass::kNic:
      return "NIC";
    case LinkClass::kLeafUp:
      return "leaf up-link";
    case LinkClass::kHost:
      return "PCIe";
  }
  throw InternalError("no such class of links");
}

Traffic traffic_of(const program::Layout& layout, const program::Program& program, const Placement& placement) {
  return count(layout, program, placement, [&](int rank) { return program::repeated_calls(layout, program, rank); });
}

Traffic traffic_of(const program::JudgedSteps& steps, const Placement& placement) {
  const program::MadeStep& last = steps.made.back();
  return count(last.layout, last.program, placement, [&](int rank) { return calls_of_whole(steps, rank); });
}

}  // namespace lockstep::plan
