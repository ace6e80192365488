#include "lockstep/engine/gradient_reducer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::engine {

using program::Action;
using program::ActionKind;
using program::Bucket;
using program::PlannedCall;

GradientReducer::GradientReducer(const StepView& step, const std::vector<Bucket>& buckets)
    : step_(step), buckets_(buckets), watch_(step.store.options().memory, step.options.mark_nonfinite) {
  // What is added up here and by the layers: every action adds to the fp32 gradient.
  LOCKSTEP_CHECK(program::order_on_rank(program::Summed::kGradients) == program::SumOrder::kList, "no other order is built");
  for (const arch::FlatUnit& unit : step_.store.layout().units) {
    FiniteWatch::Gradients& whole = whole_.emplace_back();
    whole.all = step_.store.gradients().unit(whole_.size() - 1);
    for (const arch::FlatSlot& slot : unit.slots) whole.pieces.push_back({.param = slot.param, .values = step_.store.grad(slot.param)});
  }
}

void GradientReducer::add_handlers(Handlers& handlers) {
  handlers.add({ActionKind::kReduceGrad, ActionKind::kPush}, [this](const Action& action) { return reduce(action); });
  handlers.add_prompt({ActionKind::kShardGrad}, [this](const Action& action) { shard(action); });
  handlers.add({ActionKind::kReduceShard}, [this](const Action& action) { return reduce_shard(action); });
  handlers.add({ActionKind::kReduceTied}, [this](const Action& action) { return reduce_tied(action); });
  handlers.add_prompt({ActionKind::kReducePartial}, [this](const Action& action) { reduce_partial(action); });
}

void GradientReducer::start_step() {
  watch_.start_step();
  kept_.assign(step_.store.layout().units.size(), false);
  step_.store.gradients().zero();
}

void GradientReducer::open(const program::Effects& effects) {
  UnitBuffers& gradients = step_.store.gradients();
  for (const program::Touch& touch : effects.touches) {
    if (touch.what != program::Resource::kGradients || touch.how != program::Access::kAdd) continue;
    const size_t unit = step_.store.unit_of(touch.index);
    if (!gradients.transient(unit) || gradients.held(unit)) continue;
    gradients.hold(unit);
    gradients.unit(unit).zero_();
  }
}

std::vector<size_t> GradientReducer::units(int bucket) const {
  std::vector<size_t> units;
  for (const int id : buckets_.at(static_cast<size_t>(bucket)).units) units.push_back(step_.store.unit_of(id));
  return units;
}

// Over the ranks that share out states; each rank gets the sum of its own part, where it lies in the unit.
comm::Work GradientReducer::reduce_unit(size_t unit, const PlannedCall& call) {
  const at::Tensor& gradient = step_.store.gradients().unit(unit);
  if (call.collective == program::Collective::kAllToAll) {
    LOCKSTEP_CHECK(call.order == program::SumOrder::kRanks, "finish_wire() sums in rank order");
    const MemoryScope scope(step_.store.options().memory, MemoryCategory::kBuffers);
    OnWire& wire = wire_[unit];
    wire.rounded = gradient.to(at::kBFloat16);
    wire.received = at::empty_like(wire.rounded);
    return execute(step_.groups, call, {.input = wire.rounded, .output = wire.received});
  }
  return execute(step_.groups, call, {.input = gradient, .output = step_.store.part_of(unit, gradient)});
}

// What came in bf16 is summed in fp32, in rank order; this rank's own part was never rounded. The others' parts come into
// the places of the gradient that belong to them: nobody needs those any more.
void GradientReducer::finish_wire(size_t unit) {
  const auto found = wire_.find(unit);
  if (found == wire_.end()) return;
  const arch::FlatUnit& place = step_.store.layout().units[unit];
  const int ranks = place.shards, here = step_.layout.shard(step_.groups.rank(), place.group);
  const at::Tensor parts = found->second.received.view({ranks, -1}), gradient = step_.store.gradients().unit(unit).view({ranks, -1});
  for (int rank = 0; rank < ranks; ++rank)
    if (rank != here) gradient.select(0, rank).copy_(parts.select(0, rank));
  at::Tensor sum = gradient.select(0, 0);
  for (int rank = 1; rank < ranks; ++rank) sum.add_(gradient.select(0, rank));
  if (here != 0) gradient.select(0, here).copy_(sum);
  wire_.erase(found);
}

Started GradientReducer::reduce(const Action& action) {
  // Before the reduction: afterwards every rank has the same non-finite sum, and nobody knows whose it was.
  check_finite(units(action.bucket));
  if (shards(units(action.bucket).front()) == 1)  // those of a bucket are of one group
    for (const PlannedCall& call : step_.calls.of(action)) {
      const Bucket& bucket = buckets_.at(static_cast<size_t>(action.bucket));
      in_flight_[action.bucket].push_back(execute(step_.groups, call, {.input = step_.store.gradients().slice(bucket.begin, bucket.end)}));
    }
  else
    start_by_unit(action, [this](size_t unit, const PlannedCall& call) { return reduce_unit(unit, call); });
  return [this, index = action.bucket] { wait(index); };
}

void GradientReducer::start_by_unit(const Action& action, const std::function<comm::Work(size_t unit, const PlannedCall& call)>& start) {
  const std::vector<PlannedCall>& calls = step_.calls.of(action);
  const std::vector<size_t> parts = units(action.bucket);
  LOCKSTEP_CHECK_EQ(calls.size(), parts.size(), "calls and units of bucket ", action.bucket);
  for (size_t i = 0; i < parts.size(); ++i) in_flight_[action.bucket].push_back(start(parts[i], calls[i]));
}

void GradientReducer::wait(int bucket) {
  const auto found = in_flight_.find(bucket);
  if (found == in_flight_.end()) return;
  for (comm::Work& work : found->second) step_.waits.wait(work, "dp gradients");
  in_flight_.erase(found);
  for (const size_t unit : units(bucket)) finish_wire(unit);
}

void GradientReducer::shard(const Action& action) {
  for (const size_t unit : units(action.bucket)) {
    if (shards(unit) == 1) check_finite({unit});
    keep(unit);
    step_.store.gradients().drop(unit);
  }
}

// On a device that keeps sums on the host it adds them itself, in the same order, and nobody waits for them to arrive.
void GradientReducer::keep(size_t unit) {
  const at::Tensor whole = step_.store.gradients().unit(unit), kept = step_.store.grad_part(unit);
  const at::Tensor mine = step_.store.part_of(unit, whole);
  const bool first = !kept_[unit];
  kept_[unit] = true;
  if (kept.device() == mine.device()) {
    first ? kept.copy_(mine) : kept.add_(mine);
    return;
  }
  kept.copy_(first ? mine : kept.to(mine.device(), /*non_blocking=*/true).add_(mine), /*non_blocking=*/true);
  arriving_ = true;
}

// Before the host looks at them. LOSS has waited for the device, as a rule.
void GradientReducer::wait_for_host_sums() {
  if (!arriving_) return;
  c10::impl::VirtualGuardImpl(step_.store.options().device.type()).getStream(step_.store.options().device).synchronize();
  arriving_ = false;
}

// Sums that are still on their way to the host begin when the first of them is asked for, all together.
Started GradientReducer::reduce_shard(const Action& action) {
  if (arriving_)
    later_.push_back(action);
  else
    start_shard_sums(action);
  return [this, index = action.bucket] {
    if (!later_.empty()) wait_for_host_sums();
    for (const Action& later : std::exchange(later_, {})) start_shard_sums(later);
    wait(index);
  };
}

void GradientReducer::start_shard_sums(const Action& action) {
  start_by_unit(action, [this](size_t unit, const PlannedCall& call) {
    return execute(step_.groups, call, {.input = step_.store.grad_part(unit)});
  });
}

Started GradientReducer::reduce_tied(const Action& action) {
  wait_for_host_sums();
  const size_t unit = step_.store.unit_of(action.unit);
  return step_.start(step_.planned(action), {.input = step_.store.grad_part(unit)}, "tied gradients");
}

// Of all ranks of tp, then of those that share key/value heads: a call for each of which this rank has any.
void GradientReducer::reduce_partial(const Action& action) {
  wait_for_host_sums();
  const std::vector<PlannedCall>& calls = step_.calls.of(action);
  size_t made = 0;
  for (const bool shared_heads : {false, true})
    if (std::vector<at::Tensor> gradients = partial_gradients(shared_heads); !gradients.empty())
      sum_together(gradients, calls.at(made++));
  LOCKSTEP_CHECK_EQ(made, calls.size(), "sums of partial gradients");
}

std::vector<at::Tensor> GradientReducer::partial_gradients(bool shared_heads) const {
  std::vector<at::Tensor> gradients;
  for (const ParameterStore::Piece& piece : step_.store.gradient_pieces()) {
    const arch::ParamSpec& spec = step_.store.table()[static_cast<size_t>(piece.param)];
    if (spec.partial && (spec.cut != arch::TensorCut::kNone) == shared_heads) gradients.push_back(piece.values);
  }
  return gradients;
}

// They lie scattered in the flat buffer and are small: they travel together in a copy.
void GradientReducer::sum_together(std::vector<at::Tensor>& gradients, const PlannedCall& call) {
  const at::Tensor together = at::cat(gradients);
  comm::Work work = execute(step_.groups, call, {.input = together}, /*blocking=*/true);
  step_.waits.wait(work, "tp gradients");
  int64_t offset = 0;
  for (at::Tensor& gradient : gradients) {
    gradient.copy_(together.narrow(0, offset, gradient.numel()));
    offset += gradient.numel();
  }
}

void GradientReducer::check_finite(const std::vector<size_t>& units) {
  std::vector<FiniteWatch::Gradients> gradients;
  for (const size_t unit : units) gradients.push_back(whole_[unit]);
  watch_.look(gradients);
}

void GradientReducer::check_finite() {
  std::vector<FiniteWatch::Gradients> gradients;
  for (ParameterStore::Piece& piece : step_.store.gradient_pieces())
    gradients.push_back({.all = piece.values, .pieces = {std::move(piece)}});
  watch_.look(gradients);
  watch_.read();
}

void GradientReducer::abandon() {
  wait_for_host_sums();
  UnitBuffers& gradients = step_.store.gradients();
  for (size_t unit = 0; unit < kept_.size(); ++unit)
    if (gradients.transient(unit) && gradients.held(unit)) gradients.drop(unit);
}

}  // namespace lockstep::engine
