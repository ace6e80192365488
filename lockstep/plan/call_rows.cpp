#include "lockstep/plan/call_rows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "lockstep/base/text.h"
#include "lockstep/plan/cluster/collective_time.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::plan {
namespace {

using program::Collective;
using program::MadeStep;
using program::PlannedCall;

using Key = std::tuple<std::string, Collective, std::string>;  // axis, collective, algorithm
struct Sum {
  double calls = 0, bytes = 0, seconds = 0;
  GroupShape shape{};
};
using Sums = std::map<Key, Sum>;

GroupShape shape_of_call(const program::Layout& layout, int rank, const PlannedCall& call, const Placement& placement) {
  const std::vector<int> pair = call.group.is_pair() ? program::group_ranks(layout, rank, call.group) : std::vector<int>();
  return pair.empty() ? shape_of(placement, layout.mesh, call.group.view, rank) : shape_of_pair(placement, pair.at(0), pair.at(1));
}

// What a kind of call costs whenever it is made.
std::pair<Key, Sum> one_call(const program::Layout& layout, int rank, const PlannedCall& planned, const Placement& placement) {
  const GroupShape shape = shape_of_call(layout, rank, planned, placement);
  const program::CallOfRank of_rank = program::call_of_rank(layout, rank, planned);
  const CollectiveTime time = collective_time(placement.cluster(), shape, planned.collective, static_cast<double>(program::payload(of_rank.call)));
  return {{of_rank.key.axis, planned.collective, time.algorithm},
          {1, static_cast<double>(program::predicted_bytes(of_rank.call, of_rank.group_rank)), time.seconds(), shape}};
}

Sums sums_of(const MadeStep& step, int rank, const Placement& placement) {
  Sums sums;
  program::CallTable table(step.layout, step.program, rank);
  std::map<program::Action, std::vector<std::pair<Key, Sum>>> known;
  for (const program::Action& action : step.program.list(rank)) {
    const auto [entry, fresh] = known.try_emplace(without_microbatch(action));
    if (fresh)
      for (const PlannedCall& planned : table.of(action))
        if (planned.collective != Collective::kRecv) entry->second.push_back(one_call(step.layout, rank, planned, placement));
    for (const auto& [key, one] : entry->second) {
      Sum& sum = sums[key];
      sum.calls += one.calls;
      sum.bytes += one.bytes;
      sum.seconds += one.seconds;
      if (sum.shape < one.shape) sum.shape = one.shape;
    }
  }
  return sums;
}

const Sum& of(const Sums& sums, const Key& key) {
  static const Sum none;
  const auto found = sums.find(key);
  return found == sums.end() ? none : found->second;
}

std::string count_text(int count, std::string_view one, std::string_view many) { return cat(count, " ", count == 1 ? one : many); }

}  // namespace

std::vector<CallRow> call_rows(const program::JudgedSteps& steps, int rank, const Placement& placement) {
  const Sums last = sums_of(steps.made.back(), rank, placement);
  const Sums first = steps.made.size() > 1 ? sums_of(steps.first(), rank, placement) : last;
  // Every microbatch that the programs leave out adds the same.
  const MadeStep& made = steps.made.back();
  const auto between = static_cast<double>(steps.first().left_out - made.left_out);
  const double more = made.left_out > 0 ? static_cast<double>(made.left_out) / between : 0;
  std::vector<CallRow> rows;
  for (const auto& [key, sum] : last) {
    const Sum& less = of(first, key);
    const auto whole = [&](double Sum::* part) { return sum.*part + more * (sum.*part - less.*part); };
    rows.push_back({.axis = std::get<0>(key),
                    .collective = std::string(program::collective_name(std::get<1>(key))),
                    .algorithm = std::get<2>(key),
                    .shape = sum.shape,
                    .calls = whole(&Sum::calls),
                    .bytes = whole(&Sum::bytes),
                    .seconds = whole(&Sum::seconds)});
  }
  std::ranges::stable_sort(rows, std::greater<>{}, &CallRow::bytes);
  return rows;
}

std::string shape_text(const GroupShape& shape) {
  std::string text = cat(count_text(shape.ranks, "rank", "ranks"), " on ", count_text(shape.nodes, "node", "nodes"));
  if (shape.leaves > 1) text += cat(" in ", shape.leaves, " leaves");
  if (shape.nodes > 1 && shape.domains == 1) text += ", one NVLink domain";
  if (shape.domains > 1 && shape.sharing > 1) text += cat(", ", shape.sharing, " such groups share the NICs of a node");
  return text;
}

}  // namespace lockstep::plan
