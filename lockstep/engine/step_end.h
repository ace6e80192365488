// The end of a step: LOSS, NORM, STEP, and with post-validation (program/passes/post_validation.h) TOKENS and VALIDATE.
// LOSS and NORM are the two places at which the host waits for a device, once each.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/engine/gradient_reducer.h"
#include "lockstep/engine/layer_runner.h"
#include "lockstep/engine/matrix_updates.h"
#include "lockstep/engine/parameter_store.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep::engine {

class StepEnd {
 public:
  // What it ends; all outlive it.
  struct Parts {
    const program::Program& program;
    GradientReducer& gradients;
    LayerRunner& layers;
    MatrixUpdates& matrices;
    Joins& joins;
  };
  StepEnd(const StepView& step, const Parts& parts);

  void add_handlers(Handlers& handlers);
  // A step begins. It will be pending at its end where it may, and nothing says that it will be wrong.
  void begin(bool may_pend);

  // The step that was begun and not validated.
  bool pending() const { return pending_.has_value(); }
  int64_t pending_step() const { return pending_->step; }
  void redo(const std::function<void()>& run);  // `run` makes its update again
  // What VALIDATE has found of the step before.
  std::optional<StepResult> take_validated() { return std::exchange(validated_, std::nullopt); }

 private:
  struct LossSums {
    at::Tensor sums{};  // loss, tokens, ranks with a gradient that is not finite; then the loads of layers with experts
    // Once they are of all ranks.
    bool finite() const { return sums.const_data_ptr<double>()[2] == 0; }
    void tell(const program::Layout& layout, StepResult& result) const;
  };
  struct Pending {
    int64_t step = 0;
    double lr = 0;
    LossSums loss{};
    GradientReducer::Norm norm{};
  };
  Started loss(const program::Action& action);
  Started norm(const program::Action& action);
  void update(const program::Action& action);
  Started tokens(const program::Action& action);
  void validate();
  StepResult outcome();

  double read_device();
  // Of NORM: the sum of the squares, what a parameter server tells; null where there is none.
  const program::PlannedCall* norm_call(const program::Action& action, program::Collective collective);
  double norm_of_ranks(const program::Action& action);
  void scale(double norm, StepResult& result);
  int64_t tokens_here() const;
  const std::vector<optim::Parameter>& updated(int id);
  void forget_forward();
  void nonfinite(int64_t step);

  const StepView step_;
  const Parts with_;
  std::map<int, std::vector<optim::Parameter>> updated_;  // by the unit of STEP
  std::unique_ptr<StateCopy> before_;  // null without post-validation
  at::Tensor tokens_;                  // the sum over the ranks of TOKENS
  std::optional<Pending> pending_;
  std::optional<StepResult> validated_;
  bool clipped_ = true;  // so was the last step that is known: the next one will hardly be right
};

}  // namespace lockstep::engine
