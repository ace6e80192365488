// A step whose update goes ahead of the norm, and what is done where that was wrong (program/passes/post_validation.h); a step
// that is left out, or the last one, because a gradient was not finite.
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/engine/step_end.h"
#include "lockstep/program/passes/post_validation.h"

namespace lockstep::engine {

using program::Action;
using program::Resource;

Started StepEnd::tokens(const Action& action) {
  tokens_ = at::tensor({static_cast<double>(tokens_here())}, at::kDouble);
  const program::PlannedCall* call = with_.calls.only(action);
  if (!call) return {};
  return waiting_for(execute(with_.groups, *call, {.input = tokens_}), with_.waits, "tokens");
}

// All ranks of one replica see the same tokens.
double StepEnd::tokens_of_ranks() const {
  return with_.groups.data().size() == 1 ? static_cast<double>(tokens_here()) : tokens_.item<double>();
}

// The gradients of the step before are there until here.
void StepEnd::validate() {
  if (pending_) {
    validated_ = outcome();
    if (validated_->clip_factor < 1) {
      forget_forward();
      with_.state.outcome = Outcome::kTakenBack;
      return;
    }
    accept();
  }
  with_.gradients.start_step();
}

StepResult StepEnd::outcome() {
  with_.joins.join(Resource::kLosses);
  with_.joins.join(Resource::kNorm);
  StepResult found;
  const double* sums = pending_->loss.sums.const_data_ptr<double>();
  found.tokens = std::llround(sums[1]);
  LOCKSTEP_CHECK(found.tokens > 0, "a step without a single valid target");
  found.loss = sums[0] / sums[1];
  const double norm = pending_->norm.value();
  with_.groups.world().confirm();
  scale(norm, found);
  if (sums[2] == 0 && std::isfinite(found.grad_norm)) return found;
  before_->restore();
  if (sums[2] == 0) with_.gradients.check_finite();
  const int64_t step = pending_->step;
  pending_.reset();
  nonfinite(step);
  return found;
}

// What this step has computed with parameters that are wrong, and what others have sent of it.
void StepEnd::forget_forward() {
  // All are asked for before one is waited for: a sender may wait for room in another channel first.
  std::vector<Started> coming;
  for (const Action& action : program::unreceived(with_.program, with_.layout, with_.groups.rank()))
    coming.push_back(with_.layers.receive(action));
  for (const Started& started : coming) started();
  with_.joins.join(Resource::kInput);
  with_.joins.join(Resource::kSent);
  with_.joins.join(Resource::kTokens);  // they are counted again
  with_.links.drop();
  with_.layers.abandon();
}

// By the scale that outcome() has found.
void StepEnd::begin_redo() {
  with_.joins.join(Resource::kParameters);
  before_->restore();
  std::swap(with_.state.step, pending_->step);
  std::swap(with_.state.lr, pending_->lr);
}

void StepEnd::end_redo() {
  std::swap(with_.state.step, pending_->step);
  std::swap(with_.state.lr, pending_->lr);
  accept();
}

// Row of the whole model's table; -1 for none. Ranks of a pipeline have tables of their own.
int64_t StepEnd::row_of_model(int param) const {
  if (param < 0) return -1;
  const std::string& name = with_.store.table()[static_cast<size_t>(param)].name;
  const std::vector<arch::ParamSpec> table = arch::param_table(with_.layout.model);
  const auto found = std::find_if(table.begin(), table.end(), [&](const arch::ParamSpec& spec) { return spec.name == name; });
  return found - table.begin();
}

void StepEnd::nonfinite(int64_t step) {
  with_.groups.world().confirm();  // what an aborted call leaves behind is no gradient, and nobody's fault
  // What is in flight ends first: every rank comes here in the same step.
  with_.joins.join(Resource::kGradients);
  with_.joins.join(Resource::kStates);
  with_.gradients.abandon();
  with_.layers.abandon();
  if (with_.store.host() && with_.store.host()->disk()) with_.store.host()->disk()->abandon();
  comm::Communicator& replica = with_.groups.replica();
  const at::Tensor mine = at::tensor({row_of_model(with_.gradients.watch().first())}, at::kLong);
  const at::Tensor all = at::empty({replica.size()}, at::kLong);
  replica.all_gather(mine, all, {.id = program::call_id(program::Purpose::kNonFinite)}).wait();
  const int64_t* params = all.const_data_ptr<int64_t>();
  std::vector<std::string> culprits;
  const std::vector<arch::ParamSpec> table = arch::param_table(with_.layout.model);
  for (int rank = 0; rank < replica.size(); ++rank)
    if (params[rank] >= 0) culprits.push_back(cat("rank ", rank, ": ", table[static_cast<size_t>(params[rank])].name));
  const std::string whose = culprits.empty() ? "their norm overflows" : join(culprits, ", ");
  if (options_.skip_nonfinite) {
    with_.state.result.skipped = whose;
    with_.state.outcome = Outcome::kLeftOut;
    return;
  }
  throw DivergedError({.code = "LS5001",
                       .what = cat("step ", step, ": a gradient is not finite (", whose, ")"),
                       .way_out = "the weights are those before this step; try a lower optimizer.lr, a longer warm-up, "
                                  "precision = \"fp32\", or train.nonfinite = \"skip\""});
}

}  // namespace lockstep::engine
