// GATHER_UPDATE and SCATTER_UPDATE: matrices that are updated whole and that no rank has whole (program/matrices.h). On the host
// where the optimizer's states live there.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <utility>
#include <vector>

#include "lockstep/engine/groups.h"
#include "lockstep/engine/handlers.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/engine/step_state.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/program/matrices.h"

namespace lockstep::engine {

class MatrixUpdates {
 public:
  explicit MatrixUpdates(const StepView& step);

  void add_handlers(Handlers& handlers);
  // At STEP of a unit: what came back changes the values of this rank's pieces. Nothing where it has none.
  void apply(int unit);

 private:
  struct OnTheWay {
    std::vector<at::Tensor> matrices{};  // of the unit's those that this rank owns, [rows, columns]; else undefined
    std::vector<std::pair<program::MatrixMessage, at::Tensor>> coming{};  // to be put into them
    std::vector<at::Tensor> leaving{};   // until it is sent
    std::map<int, at::Tensor> pieces{};  // by row of the table: this rank's, orthogonalised, flat
  };
  Started gather(const program::Action& action);
  Started scatter(const program::Action& action);
  at::TensorOptions wire() const;
  MemoryScope memory() const;

  const StepView step_;
  const program::MatrixPlan plan_;
  std::map<int, OnTheWay> on_the_way_;  // by unit
};

}  // namespace lockstep::engine
