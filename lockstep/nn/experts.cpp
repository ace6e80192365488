#include "lockstep/nn/experts.h"

#include <ATen/ops/tensor.h>

#include <numeric>
#include <utility>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/clamped_glu.h"
#include "lockstep/nn/device_router.h"
#include "lockstep/nn/gemm.h"
#include "lockstep/nn/grouped.h"
#include "lockstep/nn/router.h"

namespace lockstep::nn {
namespace {

RoutingRules rules_of(const ExpertShape& shape) {
  return {.experts = shape.sizes.count,
          .per_token = shape.sizes.per_token,
          .router = shape.sizes.router,
          .groups = shape.sizes.groups,
          .top_groups = shape.sizes.top_groups,
          .routed_scale = shape.sizes.routed_scale,
          .capacity_factor = shape.moe.capacity_factor,
          .drop = shape.moe.drop};
}

std::unique_ptr<const Activation> activation_of(const arch::ExpertSizes& sizes) {
  if (sizes.clamp > 0) return std::make_unique<ClampedGlu>(sizes.clamp);
  return std::make_unique<SwiGlu>();
}

}  // namespace

Experts::Experts(ExpertShape shape, ExpertParameters parameters, std::unique_ptr<Mlp> shared,
                 std::shared_ptr<ExpertExchange> exchange)
    : shape_(std::move(shape)), rules_(rules_of(shape_)), parameters_(std::move(parameters)), activation_(activation_of(shape_.sizes)),
      shared_(std::move(shared)), exchange_(std::move(exchange)) {
  const int64_t width = parameters_.router_weight.value.size(1), inner = parameters_.down.value.size(1);
  local_experts_ = parameters_.down.value.size(0) / width;
  LOCKSTEP_CHECK(exchange_ != nullptr);
  LOCKSTEP_CHECK_EQ(parameters_.router_weight.value.size(0), rules_.experts, "rows of the router");
  LOCKSTEP_CHECK_EQ(parameters_.down.value.size(0), local_experts_ * width, "rows of down");
  LOCKSTEP_CHECK_EQ(parameters_.gate_up.value.size(0), local_experts_ * 2 * inner, "rows of gate and up");
  LOCKSTEP_CHECK(local_experts_ >= 1 && rules_.experts % local_experts_ == 0, local_experts_, " of ", rules_.experts, " experts");
  check_biases();
  Experts::set_last_loads({});
}

void Experts::check_biases() {
  const mesh::Range columns = exchange_->own_columns(parameters_.router_weight.value.size(1));
  first_biased_ = columns.begin;
  const auto check = [&](const Parameter& bias, bool there, int64_t numbers, const char* what) {
    LOCKSTEP_CHECK_EQ(bias.defined(), there, "a bias of ", what);
    if (there) LOCKSTEP_CHECK_EQ(bias.value.numel(), numbers, "numbers of the bias of ", what);
  };
  check(parameters_.logit_bias, shape_.sizes.logit_bias, rules_.experts, "logits");
  check(parameters_.gate_up_bias, shape_.sizes.biases, parameters_.gate_up.value.size(0), "gate and up");
  check(parameters_.down_bias, shape_.sizes.biases, local_experts_ * columns.size(), "down");
}

GroupedBias Experts::bias_of(const Parameter& bias, int64_t first) const {
  return bias.defined() ? GroupedBias{.values = bias_by_expert(bias.value), .first = first} : GroupedBias();
}

std::unique_ptr<Branch::Saved> Experts::new_saved() const {
  auto saved = std::make_unique<Saved>();
  if (shared_) saved->shared = shared_->new_saved();
  return saved;
}

bool Experts::has_aux_loss() const {
  return shape_.moe.balance == config::Balance::kAux && rules_.router != config::Router::kExpertChoice;
}

// The same in every pass but decode: who evaluates makes the calls of who trains.
bool Experts::wants_all_rows(const Pass& pass) const {
  return pass.drops && arch::routes_by_sequence(shape_.sizes, shape_.moe);
}

at::Tensor Experts::forward(const at::Tensor& x, Branch::Saved* saved, const Sequences& sequences) {
  return run(x, static_cast<Saved*>(saved), {.sequences = sequences});
}

at::Tensor Experts::decode(const at::Tensor& x, const KvCacheLayer&, std::span<const CacheSpan>) {
  if (rules_.router == config::Router::kExpertChoice)
    throw ConfigError({.code = "LS1340",
                       .what = "[model] router = \"expert_choice\" cannot generate: which experts a token gets depends on tokens that come after it",
                       .way_out = "generate with a model whose tokens choose their experts"});
  const Sequences sequences{.count = x.size(0), .length = x.size(1), .valid = {}};
  return run(x, nullptr, {.sequences = sequences, .drops = false});
}

at::Tensor Experts::run(const at::Tensor& x, Saved* kept, const Pass& pass) {
  at::Tensor inner, of_shared;
  Beside beside;
  if (shared_) {
    Branch::Saved* const of = kept ? kept->shared.get() : nullptr;
    beside = {.dispatch = [&, of] { inner = shared_->forward_up(x, of); },
              .combine = [&, of] { of_shared = shared_->forward_down(std::exchange(inner, {}), of); }};
  }
  const Product product = run_experts(x, kept, pass, beside);
  const at::Tensor own = product.plan->rounds.empty() ? sum_outputs(product.outputs, *product.routing, *product.plan, beside)
                                                     : sum_rounds(exchange_->take_own(x, pass.rows()), *product.plan, beside);
  at::Tensor y = exchange_->give_all(own, x, pass.rows(), ExchangePhase::kForward)();
  return of_shared.defined() ? y.add_(of_shared) : y;
}

void Experts::recompute(const at::Tensor& x, Branch::Saved& saved, const Sequences& sequences) {
  auto& kept = static_cast<Saved&>(saved);
  Beside beside;
  if (shared_) beside.dispatch = [&] { shared_->recompute(x, *kept.shared, sequences); };
  const Product product = run_experts(x, &kept, {.sequences = sequences}, beside);
  if (!product.plan->rounds.empty()) beside.dispatch();
}

Experts::Product Experts::run_experts(const at::Tensor& x, Saved* kept, const Pass& pass, const Beside& beside) {
  const at::Tensor own = exchange_->take_own(x, pass.rows());
  Product product;
  product.routing = route(own, kept, pass);
  product.plan = exchange_->plan(*product.routing);
  if (kept) {
    kept->x = own;
    kept->routing = product.routing;
    kept->plan = product.plan;
    kept->rows = pass.rows();
  }
  if (!product.plan->rounds.empty()) return product;
  product.outputs = send_through(own, *product.routing, *product.plan, kept, beside);
  if (kept) kept->outputs = product.outputs;
  return product;
}

at::Tensor Experts::send_through(const at::Tensor& own, const Routing& routing, const Plan& plan, Saved* kept,
                                 const Beside& beside) {
  Pending coming = plan.tokens ? exchange_->spread(own, plan, ExchangePhase::kForward)
                               : exchange_->dispatch(permute_rows(own, routing), plan, ExchangePhase::kForward);
  beside.dispatch();
  at::Tensor received = std::exchange(coming, {})();
  if (plan.tokens) received = permute_rows(received, *plan.tokens);
  at::Tensor here = multiply_experts(std::exchange(received, {}), plan, kept);
  if (plan.tokens) return here;
  Pending back = exchange_->combine(std::exchange(here, {}), plan, ExchangePhase::kForward);
  beside.combine();
  return back();
}

at::Tensor Experts::sum_outputs(const at::Tensor& outputs, const Routing& routing, const Plan& plan, const Beside& beside) {
  if (!plan.tokens) return sum_rows(outputs, routing, /*weighted=*/true);
  Pending back = exchange_->collect(sum_rows(outputs, *plan.tokens, /*weighted=*/true), plan, ExchangePhase::kForward);
  beside.combine();
  return back();
}

at::Tensor Experts::multiply_experts(const at::Tensor& received, const Plan& plan, Saved* kept) const {
  at::Tensor h = grouped_multiply(received, by_expert(parameters_.gate_up.value), plan.here, bias_of(parameters_.gate_up_bias, 0));
  const at::Tensor inner = activation_->forward(h);
  if (kept) {
    kept->received = received;
    kept->h = h;
    kept->inner = inner;
  }
  h.reset();
  return grouped_multiply(inner, by_expert(parameters_.down.value), plan.here, bias_of(parameters_.down_bias, first_biased_));
}

OwnRows Experts::own_rows(const Pass& pass, at::Device device) const {
  const mesh::Range own = exchange_->own_rows(pass.rows());
  if (!wants_all_rows(pass)) return OwnRows({.begin = 0, .end = own.size()});
  return pass.parts() == 1 ? OwnRows(own) : OwnRows(own, *pass.sequences.places, device);
}

int64_t Experts::Pass::length() const {
  const int64_t all = sequences.length * parts(), whole = sequences.places ? sequences.places->length : all;
  LOCKSTEP_CHECK_EQ(all, whole, sequences.length, " tokens of a sequence on each of ", parts(), " ranks");
  return whole;
}

void Experts::locate(Routing& routing, const Pass& pass) const {
  routing.begin = exchange_->own_rows(pass.rows()).begin;
  routing.length = pass.length();
  routing.parts = pass.parts();
}

// x [T, D]
std::shared_ptr<const Routing> Experts::route(const at::Tensor& x, Saved* kept, const Pass& pass) {
  const int64_t length = pass.length();
  const at::Tensor bias_of_logits = parameters_.logit_bias.defined() ? parameters_.logit_bias.value.to(at::kFloat) : at::Tensor();
  at::Tensor logits = multiply(x.to(at::kFloat), router_weight().t(), bias_of_logits);
  if (wants_all_rows(pass)) logits = exchange_->gather_scores(logits, pass.sequences);
  if (routes_on_device(logits, pass)) return route_on_device(logits, kept, pass);
  logits = logits.to(at::kCPU);
  const at::Tensor scores = router_scores(logits, rules_.router);
  const bool experts_choose = rules_.router == config::Router::kExpertChoice;
  const at::Tensor bias = parameters_.router_bias.defined() ? parameters_.router_bias.value.to(at::kCPU, at::kFloat) : at::Tensor();
  std::vector<Assignment> assignments =
      experts_choose ? choose_tokens(scores, rules_, length) : choose_experts(scores, bias, rules_);
  if (pass.drops && rules_.capacity_factor && !experts_choose)
    by_last_step() ? drop_beyond_last_load(assignments, rules_, length, last_loads_) : drop_beyond_capacity(assignments, rules_, length);

  const OwnRows own = own_rows(pass, at::kCPU);
  auto routing = std::make_shared<Routing>(own.sort(assignments, rules_.experts));
  locate(*routing, pass);
  if (!kept) return routing;
  kept->logits = own.copy_of(logits);
  if (pass.sequences.valid.defined())
    add_losses(*routing, {.all = scores, .own = own, .own_logits = kept->logits}, assignments, pass.sequences);
  return routing;
}

void Experts::add_losses(Routing& routing, const Scored& scores, std::span<const Assignment> assignments,
                         const Sequences& sequences) const {
  const at::Tensor valid = sequences.valid.to(at::kCPU, at::kDouble).contiguous();
  LOCKSTEP_CHECK_EQ(valid.numel(), sequences.count, "counts of valid targets");
  const std::span<const double> targets(valid.const_data_ptr<double>(), static_cast<size_t>(valid.numel()));
  const double coefficient = shape_.moe.aux_coefficient;
  if (has_aux_loss() && by_last_step())
    add_aux_loss_of_shares(routing, router_probabilities(scores.own_scores(), rules_.router), last_shares(), targets, coefficient);
  else if (has_aux_loss())
    add_aux_loss(routing, router_probabilities(scores.all, rules_.router), assignments, targets, coefficient);
  if (shape_.moe.z_coefficient > 0) add_z_loss(routing, scores.own_logits, targets, shape_.moe.z_coefficient);
}

at::Tensor Experts::backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return input_gradient(dy, static_cast<Saved&>(saved), /*weights_follow=*/false)();
}

Pending Experts::start_backward_input(const at::Tensor& dy, Branch::Saved& saved) {
  return input_gradient(dy, static_cast<Saved&>(saved), /*weights_follow=*/true);
}

Pending Experts::input_gradient(const at::Tensor& dy, Saved& kept, bool weights_follow) {
  const Plan& plan = *kept.plan;
  if (!plan.rounds.empty()) return input_gradient_of_rounds(dy, kept, weights_follow);
  const at::Tensor own = exchange_->take_own(dy, kept.rows);
  WeightedGradients gradients;
  Pending coming;
  if (plan.tokens) {
    coming = exchange_->spread(own, plan, ExchangePhase::kBackward);
  } else {
    gradients = sum_rows_backward(own, std::exchange(kept.outputs, {}), *kept.routing);
    coming = exchange_->dispatch(std::exchange(gradients.outputs, {}), plan, ExchangePhase::kBackward);
  }
  at::Tensor begun = begin_shared_gradient(dy, kept);
  if (plan.tokens) {  // the weights' gradients are made where the outputs are
    gradients = sum_rows_backward(std::exchange(coming, {})(), std::exchange(kept.outputs, {}), *plan.tokens);
    gradients.weights = exchange_->return_weights(gradients.weights, plan);
  }
  at::Tensor of_router = backward_router(std::exchange(gradients.weights, {}), kept);
  at::Tensor here = backward_experts(plan.tokens ? std::exchange(gradients.outputs, {}) : std::exchange(coming, {})(), kept);
  Pending own_dx = return_gradients(std::move(here), kept, std::move(of_router));
  Pending of_shared = end_shared_gradient(std::exchange(begun, {}), kept, weights_follow);
  count_loads(kept);
  return give_back(std::move(own_dx), std::move(of_shared), dy, kept.rows);
}

at::Tensor Experts::begin_shared_gradient(const at::Tensor& dy, Saved& kept) {
  return shared_ ? shared_->backward_down(dy, *kept.shared) : at::Tensor();
}

Pending Experts::end_shared_gradient(const at::Tensor& begun, Saved& kept, bool weights_follow) {
  if (!shared_) return {};
  if (weights_follow) return shared_->start_backward_up(begun, *kept.shared);
  return [dx = shared_->backward_up(begun, *kept.shared)] { return dx; };
}

// By the time that the result is asked for `kept` may be empty.
Pending Experts::return_gradients(at::Tensor here, const Saved& kept, at::Tensor of_router) {
  if (!kept.plan->tokens) {
    Pending coming = exchange_->combine(std::exchange(here, {}), *kept.plan, ExchangePhase::kBackward);
    return [combined = std::move(coming), routing = kept.routing, plan = kept.plan, of_router = std::move(of_router)] {
      return sum_rows(combined(), *routing, /*weighted=*/false, of_router);
    };
  }
  const at::Tensor sums = sum_rows(here, *kept.plan->tokens, /*weighted=*/false);
  here.reset();
  Pending coming = exchange_->collect(sums, *kept.plan, ExchangePhase::kBackward);
  return [collected = std::move(coming), plan = kept.plan, of_router = std::move(of_router)] {
    const at::Tensor own = collected();
    return of_router.defined() ? of_router.add(own).to(own.scalar_type()) : own;
  };
}

Pending Experts::give_back(Pending own, Pending of_shared, const at::Tensor& dy, int64_t rows) {
  return [this, own = std::move(own), of_shared = std::move(of_shared), dy, rows] {
    at::Tensor dx = exchange_->give_all(own(), dy, rows, ExchangePhase::kBackward)();
    return of_shared ? dx.add_(of_shared()) : dx;
  };
}

// dy [R, D] of the outputs here -> dx [R, D]
at::Tensor Experts::backward_experts(const at::Tensor& dy, Saved& kept) const {
  const std::vector<int64_t>& sizes = kept.plan->here;
  kept.dy = dy;
  const at::Tensor dinner = grouped_multiply_input(dy, by_expert(parameters_.down.value), sizes);
  kept.h = activation_->backward(dinner, std::exchange(kept.h, {}));
  return grouped_multiply_input(kept.h, by_expert(parameters_.gate_up.value), sizes);
}

at::Tensor Experts::backward_router(const at::Tensor& dweights, Saved& kept) const {
  if (kept.routing->on_device)
    device_router_backward(kept.logits, dweights, *kept.routing, rules_);
  else
    router_backward(kept.logits, dweights.to(at::kCPU), *kept.routing, rules_);
  return multiply(kept.logits.to(dweights.device()), router_weight());
}

void Experts::backward_weight(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  if (shared_) shared_->backward_weight(*kept.shared);
  accumulate_experts(kept);
  if (kept.x.size(0) > 0) {
    const at::Tensor dlogits = kept.logits.to(kept.x.device());
    accumulate_matmul(parameters_.router_weight.grad, dlogits.t(), kept.x.to(at::kFloat));
    if (parameters_.logit_bias.defined()) accumulate_row_sum(parameters_.logit_bias.grad, dlogits);
  }
  if (parameters_.router_bias.defined() && shape_.moe.balance == config::Balance::kBias) add_bias_gradient(*kept.routing);
  kept = Saved();
}

void Experts::add_bias_gradient(const Routing& routing) const {
  if (routing.on_device) return add_bias_gradient_on_device(*routing.on_device);
  std::vector<float> gradient;
  const auto sum = static_cast<int64_t>(routing.assignments.size());
  for (const int64_t count : routing.routed) gradient.push_back(static_cast<float>(rules_.experts * count - sum));
  const at::Tensor& grad = parameters_.router_bias.grad;
  grad.add_(at::tensor(gradient).to(grad.device()));
}

void Experts::forget(Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.x.reset();
  if (shared_) shared_->forget(*kept.shared);
}

void Experts::restore(const at::Tensor& x, Branch::Saved& saved) {
  auto& kept = static_cast<Saved&>(saved);
  kept.x = exchange_->take_own(x, kept.rows);
  if (shared_) shared_->restore(x, *kept.shared);
}

void Experts::count_loads(const Saved& kept) {
  const Routing& routing = *kept.routing;
  if (routing.on_device) return count_loads_on_device(*routing.on_device);
  loads_.resize(load_numbers(), 0.0);
  for (size_t e = 0; e < routing.routed.size(); ++e) loads_[e] += static_cast<double>(routing.routed[e]);
  double* const extras = loads_.data() + rules_.experts;
  extras[0] += static_cast<double>(routing.dropped());
  if (by_last_step() || exchange_->tells_sums()) extras[1] += routing.aux_sum;  // of own rows, or of all
  extras[2] += routing.z_sum;
  if (shape_.moe.imbalance_limit) extras[3] += static_cast<double>(kept.plan->told_rounds);
}

std::vector<double> Experts::take_loads() {
  std::vector<double> loads = std::exchange(loads_, {});
  loads.resize(load_numbers(), 0.0);
  add_device_loads(loads);
  return loads;
}

void Experts::set_last_loads(std::span<const double> routed) {
  LOCKSTEP_CHECK(routed.empty() || std::ssize(routed) == rules_.experts, routed.size(), " loads of ", rules_.experts, " experts");
  last_loads_.assign(routed.begin(), routed.end());
  if (routed.empty()) last_loads_.assign(static_cast<size_t>(rules_.experts), 1.0);
}

std::vector<double> Experts::last_shares() const {
  const double sum = std::accumulate(last_loads_.begin(), last_loads_.end(), 0.0);
  std::vector<double> shares;
  for (const double load : last_loads_) shares.push_back(load / sum);
  return shares;
}

}  // namespace lockstep::nn
