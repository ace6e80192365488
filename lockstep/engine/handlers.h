// Who runs which action, what that has started, and who waits for it.
#pragma once

#include <compare>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/engine/groups.h"
#include "lockstep/program/effects.h"

namespace lockstep::engine {

// What a rank waited for: the exposed part of communication and copies, by what it was.
class ExposedWaits {
 public:
  void wait(comm::Work& work, const std::string& what) {
    work.wait();
    const double seconds = work.exposed_seconds();
    seconds_[what] += seconds;
    total_ += seconds;
  }
  // Since the last call.
  std::map<std::string, double> take() { return std::exchange(seconds_, {}); }
  // Of all, since the beginning.
  double total() const { return total_; }

 private:
  std::map<std::string, double> seconds_;
  double total_ = 0;
};

// Waits for what a handler has started; harmless when called again. Empty: it was over at once.
using Started = std::function<void()>;

// Of calls.
inline Started waiting_for(std::vector<comm::Work> works, ExposedWaits& waits, const char* what) {
  return [works = std::make_shared<std::vector<comm::Work>>(std::move(works)), &waits, what] {
    for (comm::Work& work : *works) waits.wait(work, what);
    works->clear();
  };
}
inline Started waiting_for(comm::Work work, ExposedWaits& waits, const char* what) {
  return waiting_for(std::vector<comm::Work>{std::move(work)}, waits, what);
}

// What this rank has started and who waits for it: program/effects.h says which action, this does it.
class Joins : program::Pending<Started> {
 public:
  using Pending::start;
  // Waits for what the action joins.
  void join(const program::Effects& effects, const program::Action& action) {
    for (const Started& started : of(effects, action)) started();
    Pending::join(effects, action);
  }
  // Waits for all that was started on a kind of resource.
  void join(program::Resource what) { join({.touches = {{what, program::Access::kRead, program::kEvery}}}, {}); }
};

// Runs the action: what it touches has been joined. What goes on behind it is returned, to be joined later.
using Handler = std::function<Started(const program::Action& action)>;

class Handlers {
 public:
  // What one handler runs: a kind of action; of FETCH and EVICT with what is moved.
  struct Handled {
    Handled(program::ActionKind of, program::Moved what = {}) : kind(of), moved(what) {}
    program::ActionKind kind;
    program::Moved moved;
    auto operator<=>(const Handled&) const = default;
  };
  void add(std::initializer_list<Handled> all, const Handler& handler) {
    for (const Handled& each : all)
      LOCKSTEP_CHECK(of_.emplace(each, handler).second, program::action_name(each.kind), " has two handlers");
  }
  // Of one that is over when it returns.
  template <typename Run>
  void add_prompt(std::initializer_list<Handled> all, Run run) {
    add(all, [run = std::move(run)](const program::Action& action) {
      run(action);
      return Started();
    });
  }
  Started run(const program::Action& action) const {
    const auto found = of_.find({action.kind, action.moved});
    LOCKSTEP_CHECK(found != of_.end(), "no handler for ", program::action_name(action.kind));
    return found->second(action);
  }

 private:
  std::map<Handled, Handler> of_;
};

}  // namespace lockstep::engine
