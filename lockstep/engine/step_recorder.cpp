#include "lockstep/engine/step_recorder.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "lockstep/program/passes.h"
#include "lockstep/program/predict.h"

namespace lockstep::engine {
namespace {

using program::Action;

// The names under which an action's calls are recorded, in order.
std::vector<std::string> sites_of(const program::Layout& layout, const program::Program& program, int rank,
                                  const Action& action) {
  if (program::computes(action.kind)) return {};
  std::vector<std::string> sites;
  for (const program::PlannedCall& planned : program::planned_calls(layout, program, rank, action))
    sites.push_back(planned.key.site);
  return sites;
}

}  // namespace

StepRecorder::StepRecorder(const program::Layout& layout, const program::Program& program, Groups& groups,
                           Clock::time_point start)
    : layout_(layout), program_(program), groups_(groups), start_(start) {
  for (const auto& [name, group] : groups_.all()) group->time_calls();
  trace_.rank = groups_.rank();
  trace_.world_size = layout.mesh.world_size();
  trace_.actions = static_cast<int>(program.ranks.at(static_cast<size_t>(trace_.rank)).size());
}

void StepRecorder::end(size_t action) {
  trace_.records.push_back({.action = static_cast<int>(action), .start = seconds(begun_), .end = seconds(Clock::now())});
}

// Calls of one site follow each other in the order of the list.
plan::StepTrace StepRecorder::finish(int64_t step) {
  trace_.step = step;
  std::map<std::string, std::deque<comm::TimedCall>> calls;
  for (const auto& [name, group] : groups_.all())
    for (comm::TimedCall& call : group->take_times()) calls[call.site].push_back(std::move(call));
  const std::vector<Action>& actions = program_.ranks[static_cast<size_t>(trace_.rank)];
  for (plan::ActionRecord& record : trace_.records) {
    bool first = true;
    for (const std::string& site : sites_of(layout_, program_, trace_.rank, actions[static_cast<size_t>(record.action)])) {
      std::deque<comm::TimedCall>& of_site = calls[site];
      if (of_site.empty()) continue;
      record.start = first ? seconds(of_site.front().entered) : std::min(record.start, seconds(of_site.front().entered));
      record.end = first ? seconds(of_site.front().left) : std::max(record.end, seconds(of_site.front().left));
      first = false;
      of_site.pop_front();
    }
  }
  return std::move(trace_);
}

}  // namespace lockstep::engine
