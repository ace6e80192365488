// What an action asks of a machine: of this a simulation makes seconds by a cost file (simulate.h). How long actions take on a
// cluster that is only described is in plan/time/.
#pragma once

#include <map>
#include <vector>

#include "lockstep/program/planned_calls.h"
#include "lockstep/program/predict/moves.h"

namespace lockstep::plan {

// Of one action on one rank; bytes.
struct Price {
  double share = 1;                // of F, B and I in parts: the part's FLOPs over those of all parts (part_share)
  double handed_over = 0;          // SEND: activations or their gradient
  std::vector<double> calls{};     // of each collective what the rank sends that sends most: it keeps the others waiting
  std::vector<double> moves{};     // each between device, host and disk (predict/moves.h)
  bool norm = false;               // it makes the gradient norm
  double updated = 0, parameters = 1;  // elements that it updates, of all that the rank does
};

// Of F, B and I in parts the part's FLOPs over those of all parts; of all else 1.
double part_share(const program::Action& action, const arch::LayerCost& cost);

// Of a rank. Layout and program outlive it.
class Prices {
 public:
  Prices(const program::Layout& layout, const program::Program& program, int rank);
  // Of actions that differ in the microbatch alone it is one.
  const Price& of(const program::Action& action);

 private:
  void add_calls(const program::Action& action, Price& price);
  void add_touched(const program::Effects& effects, Price& price) const;

  const program::Layout& layout_;
  int rank_;
  program::CallTable calls_;
  std::vector<arch::LayerCost> costs_;
  arch::FlatLayout flat_;
  program::EffectTable effects_;
  program::ActionMoves moves_;
  std::map<program::Action, Price> known_;
};

}  // namespace lockstep::plan
