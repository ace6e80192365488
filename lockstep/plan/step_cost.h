// A rough time of a step, to order layouts of one job by: not a simulation, nothing overlaps in it.
#pragma once

#include "lockstep/config/run_config.h"
#include "lockstep/program/program.h"

namespace lockstep::plan {

// What a rank does in a step.
struct StepCost {
  double flops = 0;          // of matrix products, those computed again included
  double pointwise = 0;      // bytes of memory that selective recomputation reads and writes once more
  double network = 0;        // bytes sent, by the predicted ledger
  double host = 0;           // bytes between device and host
  double actions = 0;
};
StepCost step_cost(const program::Layout& layout, const program::Program& program, int rank);

// Its parts one after the other on a machine of today, in seconds:
//          FLOP/s   memory B/s   network B/s   host B/s   an action
//   cpu      50e9        10e9          2e9        5e9        20 us
//   cuda    300e12        2e12         50e9       25e9        10 us
double seconds(const StepCost& cost, config::Device device);

// A whole step: that of `rank`; in a pipeline of its slowest stage, and (p - 1) / (v m) of that while it fills and drains
// (Narayanan et al. 2021, section 2.2), a third where W fills two thirds (ZB-H1, Qi et al. 2024), nothing where it fills all.
double step_seconds(const program::Layout& layout, const program::Program& program, int rank, config::Device device);

}  // namespace lockstep::plan
