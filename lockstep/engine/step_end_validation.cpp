// A step whose update goes ahead of the norm, and what is done where that was wrong (program/passes/post_validation.h); a step
// that is left out, or the last one, because a gradient was not finite.
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/exchange.h"
#include "lockstep/engine/step_end.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::engine {

using program::Action;
using program::Resource;

Started StepEnd::tokens(const Action& action) {
  tokens_ = at::tensor({static_cast<double>(tokens_here())}, at::kDouble);
  return step_.start(step_.planned(action), {.input = tokens_}, "tokens");
}

// The gradients of the step before are there until here. Between steps, where no microbatches are, nothing else has begun.
void StepEnd::validate() {
  const bool in_step = step_.state.microbatches != nullptr;
  if (pending_) {
    validated_ = outcome();
    if (validated_->clip_factor < 1) {
      if (in_step) forget_forward();
      step_.state.outcome = Outcome::kTakenBack;
      return;
    }
    pending_.reset();
  }
  if (in_step) with_.gradients.start_step();
}

// Of the step before, once the other ranks have theirs: the same on all of them. With clip_factor below 1 its update was wrong.
StepResult StepEnd::outcome() {
  const Pending& pending = *pending_;
  StepResult found;
  pending.loss.tell(step_.layout, found);
  const double norm = pending.norm.value();
  step_.groups.world().confirm();
  scale(norm, found);
  if (pending.loss.finite() && std::isfinite(found.grad_norm)) return found;
  before_->restore();
  if (pending.loss.finite()) with_.gradients.check_finite();
  nonfinite(std::exchange(pending_, std::nullopt)->step);
  return found;
}

// What this step has computed with parameters that are wrong, and what others have sent of it.
void StepEnd::forget_forward() {
  // All are asked for before one is waited for: a sender may wait for room in another channel first.
  std::vector<Started> coming;
  for (const Action& action : program::unreceived(with_.program, step_.layout, step_.groups.rank()))
    coming.push_back(with_.layers.receive(action));
  for (const Started& started : coming) started();
  with_.joins.join(Resource::kInput);
  with_.joins.join(Resource::kSent);
  with_.joins.join(Resource::kTokens);  // they are counted again
  with_.layers.abandon();
}

// By the scale that outcome() has found.
void StepEnd::redo(const std::function<void()>& run) {
  with_.joins.join(Resource::kParameters);
  before_->restore();
  const auto exchange = [this] {
    std::swap(step_.state.step, pending_->step);
    std::swap(step_.state.lr, pending_->lr);
  };
  exchange();
  run();
  exchange();
  pending_.reset();
}

void StepEnd::nonfinite(int64_t step) {
  step_.groups.world().confirm();  // what an aborted call leaves behind is no gradient, and nobody's fault
  // What is in flight ends first: every rank comes here in the same step.
  with_.joins.join(Resource::kGradients);
  with_.joins.join(Resource::kStates);
  with_.gradients.abandon();
  with_.layers.abandon();
  if (step_.store.host() && step_.store.host()->disk()) step_.store.host()->disk()->abandon();
  // Ranks of a pipeline have tables of their own: rows are those of the whole model's; -1 for none.
  const std::vector<arch::ParamSpec> table = arch::param_table(step_.layout.model);
  int64_t row = -1;
  if (const int param = with_.gradients.watch().first(); param >= 0)
    row = std::ranges::find(table, step_.store.table()[static_cast<size_t>(param)].name, &arch::ParamSpec::name) - table.begin();
  std::vector<std::string> culprits;
  int rank = 0;
  for (const auto& found : comm::gather_numbers(step_.groups.replica(), program::call_id(program::Purpose::kNonFinite), {row})) {
    if (found[0] >= 0) culprits.push_back(cat("rank ", rank, ": ", table[static_cast<size_t>(found[0])].name));
    ++rank;
  }
  const std::string whose = culprits.empty() ? "their norm overflows" : join(culprits, ", ");
  if (step_.options.skip_nonfinite) {
    step_.state.result.skipped = whose;
    step_.state.outcome = Outcome::kLeftOut;
    return;
  }
  throw DivergedError({.code = "LS5001",
                       .what = cat("step ", step, ": a gradient is not finite (", whose, ")"),
                       .way_out = "the weights are those before this step; try a lower optimizer.lr, a longer warm-up, "
                                  "precision = \"fp32\", or train.nonfinite = \"skip\""});
}

}  // namespace lockstep::engine
