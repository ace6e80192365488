// What a rank has started and not yet joined, by what it touches.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "lockstep/program/effects.h"

namespace lockstep::program {

// `Started` stands for one that was started: an action, a moment, a call.
template <typename Started>
class Pending {
 public:
  // An action that is joined later has begun. What was started before it on the same resources ends before it does: who
  // joins it has joined those.
  void start(const Effects& effects, const Action& action, const Started& started) {
    join(effects, action);
    for (const Touch& touch : effects.touches)
      if (touch.how == Access::kCreate || touch.how == Access::kUpdate || touch.how == Access::kAdd)
        started_[key(touch, touch.index, action)] = started;
  }

  // What the action waits for; one that touches several of its resources is named for each.
  std::vector<Started> of(const Effects& effects, const Action& action) const {
    std::vector<Started> found;
    for (const Touch& touch : effects.touches)
      for_each(started_, touch, action, [&](const auto& entry) { found.push_back(entry->second); });
    return found;
  }

  // It has waited: they are not named again.
  void join(const Effects& effects, const Action& action) {
    for (const Touch& touch : effects.touches)
      for_each(started_, touch, action, [&](const auto& entry) { started_.erase(entry); });
  }

 private:
  using Key = std::tuple<Resource, int, int>;  // index, microbatch

  static Key key(const Touch& touch, int index, const Action& action) {
    return {touch.what, index, by_microbatch(touch.what) ? action.microbatch : kEvery};
  }
  // What was started on what is touched; `use` may erase it.
  template <typename Map, typename Use>
  static void for_each(Map& started, const Touch& touch, const Action& action, const Use& use) {
    if (touch.index != kEvery) {
      for (const int index : {touch.index, kEvery})
        if (const auto found = started.find(key(touch, index, action)); found != started.end()) use(found);
      return;
    }
    for (auto entry = started.lower_bound({touch.what, kEvery, kEvery}); entry != started.end() && std::get<0>(entry->first) == touch.what;)
      use(entry++);
  }

  std::map<Key, Started> started_;
};

}  // namespace lockstep::program
