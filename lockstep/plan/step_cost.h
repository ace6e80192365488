// What an action asks of a machine: the one place that prices it. A simulation makes seconds of it by a cost file
// (simulate.h); here it makes a rough time of a step, to order layouts of one job by: nothing overlaps in that.
#pragma once

#include <map>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/program/matrices.h"
#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/moves.h"
#include "lockstep/program/predict/steps.h"

namespace lockstep::plan {

// Of one action on one rank; bytes.
struct Price {
  double flops = 0;                           // of matrix products, those computed again included; of layers, and of matrices that are updated whole
  double share = 1;                           // of a part: its FLOPs over those of all parts
  double pointwise = 0;                       // memory that recomputation reads and writes once more
  double sent = 0;                            // by this rank, in all calls
  double handed_over = 0;                     // SEND: activations or their gradient
  std::vector<double> calls{};                // of each collective what the rank sends that sends most: it keeps the others waiting;
                                              // where they are asked for
  std::vector<double> moves{};                // each between device, host and disk (predict/moves.h)
  bool norm = false;                          // it makes the gradient norm
  double updated = 0, parameters = 1;         // elements that it updates, of all that the rank does
};

// Of F, B and I in parts: the part's FLOPs, and its share of those of all parts; of all else nothing, and 1.
struct PartWork {
  double flops = 0;
  double share = 1;
};
PartWork work_of_part(const program::Action& action, const arch::LayerCost& cost);

// Of a rank. Layout and program outlive it.
class Prices {
 public:
  Prices(const program::Layout& layout, const program::Program& program, int rank, bool with_calls = true);
  // Of actions that differ in the microbatch alone it is one.
  const Price& of(const program::Action& action);

 private:
  void add_work(const program::Action& action, Price& price) const;
  void add_calls(const program::Action& action, Price& price);
  void add_touched(const program::Effects& effects, Price& price) const;

  const program::Layout& layout_;
  int rank_;
  bool with_calls_;
  program::CallTable calls_;
  std::vector<arch::LayerCost> costs_;
  arch::FlatLayout flat_;
  program::EffectTable effects_;
  program::ActionMoves moves_;
  program::MatrixPlan matrices_;
  std::map<program::Action, Price> known_;
};

// What a rank does in a step: the sums.
struct StepCost {
  double flops = 0;
  double pointwise = 0;
  double network = 0;  // sent, as the predicted ledger says
  double host = 0;     // between device, host and disk
  double actions = 0;
};
StepCost step_cost(const program::Layout& layout, const program::Program& program, int rank);

// Its parts one after the other on a machine of today, in seconds.
double seconds(const StepCost& cost, config::Device device);

// A whole step: that of `rank`; in a pipeline that of its slowest stage, and the fill_share (bubble.h) of that while it fills and
// drains.
double step_seconds(const program::Layout& layout, const program::JudgedSteps& steps, int rank, config::Device device);

}  // namespace lockstep::plan
