// Who runs which action kind.
#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/engine/exposed_waits.h"
#include "lockstep/engine/joins.h"

namespace lockstep::engine {

// Runs the action: what it touches has been joined. What goes on behind it is returned, to be joined later.
using Handler = std::function<Started(const program::Action& action)>;

// Of one call.
inline Started waiting_for(comm::Work work, ExposedWaits& waits, const char* what) {
  return [work = std::make_shared<std::optional<comm::Work>>(std::move(work)), &waits, what] {
    if (*work) waits.wait(**work, what);
    work->reset();
  };
}

class Handlers {
 public:
  void add(std::initializer_list<program::ActionKind> kinds, Handler handler) {
    for (const program::ActionKind kind : kinds)
      LOCKSTEP_CHECK(of_.emplace(kind, handler).second, program::action_name(kind), " has two handlers");
  }
  // Of one that is over when it returns.
  template <typename Run>
  void add_prompt(std::initializer_list<program::ActionKind> kinds, Run run) {
    add(kinds, [run = std::move(run)](const program::Action& action) {
      run(action);
      return Started();
    });
  }
  Started run(const program::Action& action) const {
    const auto found = of_.find(action.kind);
    LOCKSTEP_CHECK(found != of_.end(), "no handler for ", program::action_name(action.kind));
    return found->second(action);
  }

 private:
  std::map<program::ActionKind, Handler> of_;
};

}  // namespace lockstep::engine
