// Experts whose rows come in rounds, because more would come at once than there is room for. Nothing of a round outlives it: backward
// brings its rows once more.
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/nn/experts.h"
#include "lockstep/nn/grouped.h"

namespace lockstep::nn {
namespace {

// sum += rows, in fp32.
void add(at::Tensor& sum, const at::Tensor& rows) {
  if (sum.defined())
    sum.add_(rows);
  else
    sum = rows.to(at::kFloat);
}

}  // namespace

// The shared expert beside the first dispatch and the last combine: no round but the last has its output in memory.
at::Tensor Experts::sum_rounds(const at::Tensor& own, const Plan& plan, const Beside& beside) {
  at::Tensor sum;
  for (const ExpertExchange::Round& round : plan.rounds) {
    Beside of_round;
    if (&round == &plan.rounds.front()) of_round.dispatch = beside.dispatch;
    if (&round == &plan.rounds.back()) of_round.combine = beside.combine;
    add(sum, sum_outputs(send_through(own, round.own, *round.plan, nullptr, of_round), round.own, *round.plan, of_round));
  }
  return sum.to(own.scalar_type());
}

Experts::Saved Experts::saved_of(const Saved& kept, const ExpertExchange::Round& round) const {
  Saved of_round;
  of_round.x = kept.x;
  of_round.routing = {kept.plan, &round.own};  // both live as long as the plan
  of_round.plan = {kept.plan, round.plan.get()};
  of_round.rows = kept.rows;
  return of_round;
}

// dy [T, D] -> that of the outputs here [R, D], and of the weights of own assignments [N].
WeightedGradients Experts::send_gradients(const at::Tensor& own_dy, Saved& kept, const Beside& beside) {
  const Plan& plan = *kept.plan;
  if (!plan.tokens) {
    WeightedGradients gradients = sum_rows_backward(own_dy, std::exchange(kept.outputs, {}), *kept.routing);
    Pending coming = exchange_->dispatch(std::exchange(gradients.outputs, {}), plan, ExchangePhase::kBackward);
    beside.dispatch();
    gradients.outputs = std::exchange(coming, {})();
    return gradients;
  }
  Pending coming = exchange_->spread(own_dy, plan, ExchangePhase::kBackward);
  beside.dispatch();
  WeightedGradients gradients = sum_rows_backward(std::exchange(coming, {})(), std::exchange(kept.outputs, {}), *plan.tokens);
  gradients.weights = exchange_->return_weights(gradients.weights, plan);
  return gradients;
}

Pending Experts::input_gradient_of_rounds(const at::Tensor& dy, Saved& kept, bool weights_follow) {
  const at::Tensor own_dy = exchange_->take_own(dy, kept.rows);
  at::Tensor begun;
  Pending of_shared;
  const Beside shared{.dispatch = [&] { begun = begin_shared_gradient(dy, kept); },
                      .combine = [&] { of_shared = end_shared_gradient(std::exchange(begun, {}), kept, weights_follow); }};
  at::Tensor sum, dweights = at::zeros({kept.routing->sent_rows()}, own_dy.options().dtype(at::kFloat));
  const std::vector<ExpertExchange::Round>& rounds = kept.plan->rounds;
  for (const ExpertExchange::Round& round : rounds) {
    Saved of_round = saved_of(kept, round);
    of_round.outputs = send_through(kept.x, round.own, *round.plan, &of_round, {});
    WeightedGradients gradients = send_gradients(own_dy, of_round, &round == &rounds.front() ? shared : Beside());
    dweights.index_copy_(0, at::tensor(round.places, at::kLong).to(dweights.device()), gradients.weights);
    at::Tensor here = backward_experts(std::exchange(gradients.outputs, {}), of_round);
    Pending back = return_gradients(std::move(here), of_round, {});
    if (&round == &rounds.back()) shared.combine();
    add(sum, std::exchange(back, {})());
    if (weights_follow) accumulate_experts(of_round);
  }
  // Without the memory of gradients, which W has, their rows come a third time.
  if (!weights_follow) kept.own_dy = own_dy.clone();
  const at::Tensor dx = sum.add_(backward_router(dweights, kept)).to(own_dy.scalar_type());
  count_loads(kept);
  return give_back([dx] { return dx; }, std::move(of_shared), dy, kept.rows);
}

void Experts::accumulate_experts(const Saved& kept) {
  const Plan& plan = *kept.plan;
  if (plan.rounds.empty()) {
    accumulate_grouped(kept.dy, kept.inner, plan.here, by_expert(parameters_.down.grad));
    accumulate_grouped(kept.h, kept.received, plan.here, by_expert(parameters_.gate_up.grad));
    if (parameters_.down_bias.defined())
      accumulate_grouped_bias(kept.dy, plan.here, bias_by_expert(parameters_.down_bias.grad), first_biased_);
    if (parameters_.gate_up_bias.defined()) accumulate_grouped_bias(kept.h, plan.here, bias_by_expert(parameters_.gate_up_bias.grad));
    return;
  }
  if (!kept.own_dy.defined()) return;  // done with the gradient of x
  for (const ExpertExchange::Round& round : plan.rounds) {
    Saved of_round = saved_of(kept, round);
    of_round.outputs = send_through(kept.x, round.own, *round.plan, &of_round, {});
    backward_experts(send_gradients(kept.own_dy, of_round, {}).outputs, of_round);
    accumulate_experts(of_round);
  }
}

}  // namespace lockstep::nn
