// What only rank 0 of a run has. Internal to the trainer.
#pragma once

#include "lockstep/train/console.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/trainer.h"

namespace lockstep::train {

struct Trainer::Console0 {
  explicit Console0(const RunDirectory& directory)
      : console(ConsoleOptions::detect()), metrics(directory.root()) {}
  Console console;
  MetricsWriter metrics;
  LossStatistics statistics;
};

}  // namespace lockstep::train
