// What the steps of a layout put on the links, held against what its program predicts.
#pragma once

#include <string>
#include <vector>

#include "lockstep/engine/executor.h"
#include "lockstep/program/ledger.h"
#include "lockstep/train/verify.h"

namespace lockstep::train {

class TrafficCheck {
 public:
  // Both outlive this.
  TrafficCheck(const engine::Executor& executor, engine::Groups& groups);

  // A step begins: what was sent before it is not its own.
  void begin();
  // It has ended, its update is final. `taken_back`: that was wrong at first, and was made once more (post-validation). Lines that say
  // whose ledger is not the predicted one and where, on all ranks; empty where all agree. Collective over the world.
  std::vector<std::string> judge(bool taken_back);
  // Of the last step that was judged, and of all whether they agreed. Collective over the world.
  VerifyTraffic report() const;

 private:
  const engine::Executor& executor_;
  engine::Groups& groups_;
  program::Ledger predicted_;         // of a step
  program::Ledger expected_, found_;  // of the last one, what was made twice included
  bool as_predicted_ = true;
};

}  // namespace lockstep::train
