// What this rank has started and who waits for it: program/effects.h says which action, this does it.
#pragma once

#include <functional>
#include <utility>

#include "lockstep/program/pending.h"

namespace lockstep::engine {

// Waits for what a handler has started; harmless when called again. Empty: it was over at once.
using Started = std::function<void()>;

class Joins {
 public:
  void start(const program::Effects& effects, const program::Action& action, Started started) {
    pending_.start(effects, action, std::move(started));
  }
  // Waits for what the action joins.
  void join(const program::Effects& effects, const program::Action& action) {
    for (const Started& started : pending_.of(effects, action)) started();
    pending_.join(effects, action);
  }
  // Waits for all that was started on a kind of resource.
  void join(program::Resource what) { join({.touches = {{what, program::Access::kRead, program::kEvery}}}, {}); }

 private:
  program::Pending<Started> pending_;
};

}  // namespace lockstep::engine
