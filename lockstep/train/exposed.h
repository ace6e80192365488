// The time in which a rank waited for communication, by what it waited for.
#pragma once

#include <map>
#include <string>

#include "lockstep/engine/executor.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

std::string percent(double share);  // "7.9 %"

// {"perf/exposed_comm/tp_all_reduce", 0.031}: the shares of a step of `seconds`.
Values exposed_shares(const engine::StepResult& result, double seconds);

// Over the steps of a run.
class ExposedTotals {
 public:
  void add(const engine::StepResult& result, double seconds);
  // "waited for communication 7.9 % of 41.2 s: tp all_reduce 5.1 %, dp gradients 2.8 %"; empty where it never did.
  std::string text() const;
  // "copied 1.2 GiB between host and device in 3.1 s, 97.2 % of it hidden; 800 MiB to and from disk in 2.0 s, 81.0 % of it
  // hidden"; empty where nothing was copied.
  std::string copies_text() const;

 private:
  std::map<std::string, double> waited_;  // seconds
  engine::CopyTotals copies_, disk_;
  double seconds_ = 0;
};

}  // namespace lockstep::train
