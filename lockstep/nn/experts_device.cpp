// Experts whose routing stays on the device: nothing between router and loads is read on the host.
#include <ATen/ops/zeros.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/device_router.h"
#include "lockstep/nn/experts.h"

namespace lockstep::nn {

// Generation drops nothing, so that only counts say whether its rows have room; experts that choose have no k rows of a token.
bool Experts::routes_on_device(const at::Tensor& logits, const Pass& pass) const {
  return !logits.is_cpu() && exchange_->slots() > 0 && pass.drops && rules_.router != config::Router::kExpertChoice;
}

std::shared_ptr<const Routing> Experts::route_on_device(const at::Tensor& logits, Saved* kept, const Pass& pass) const {
  const int64_t length = pass.length(), room = exchange_->slots();
  const mesh::Range rows = exchange_->own_rows(pass.rows());
  const bool drops = rules_.capacity_factor.has_value();
  const int64_t most = most_of_expert(rules_, rows, length, drops && !by_last_step(), pass.parts());
  LOCKSTEP_CHECK(most <= room, "up to ", most, " of ", rows.size(), " rows for an expert, room for ", room);

  const at::Tensor scores = device_scores(logits, rules_.router);
  const at::Tensor bias = parameters_.router_bias.defined() ? parameters_.router_bias.value.to(at::kFloat) : at::Tensor();
  const DeviceChoice choice = choose_on_device(scores, bias, rules_);
  const OwnRows own = own_rows(pass, logits.device());
  at::Tensor stays;
  if (drops) stays = own.of(by_last_step() ? kept_by_last_load(choice, rules_, length, last_loads_) : kept_by_capacity(choice, rules_, length));
  auto placed = std::make_shared<DeviceRouting>(place_in_slots({.expert = own.of(choice.expert), .weight = own.of(choice.weight)}, stays,
                                                               {.begin = 0, .end = own.size()}, rules_, room));
  auto routing = std::make_shared<Routing>();
  locate(*routing, pass);
  if (kept) kept->logits = own.copy_of(logits);
  if (kept && pass.sequences.valid.defined())
    add_losses_on_device(*routing, *placed, {.all = scores, .own = own, .own_logits = kept->logits}, choice.expert, pass.sequences.valid);
  routing->on_device = std::move(placed);
  return routing;
}

void Experts::add_losses_on_device(Routing& routing, DeviceRouting& placed, const Scored& scores, const at::Tensor& expert,
                                   const at::Tensor& valid) const {
  const at::Tensor targets = valid.to(at::kDouble);
  const LossTerms aux{.valid = targets,
                      .coefficient = shape_.moe.aux_coefficient,
                      .length = routing.length,
                      .begin = routing.begin,
                      .parts = routing.parts};
  if (has_aux_loss()) {
    const bool by_shares = by_last_step();  // of own rows
    const at::Tensor probabilities = device_probabilities(by_shares ? scores.own_scores() : scores.all, rules_.router);
    DeviceLoss loss = by_shares ? device_aux_loss_of_shares(probabilities, last_shares(), aux) : device_aux_loss(probabilities, expert, aux);
    placed.aux_sum = std::move(loss.sum);
    routing.aux_slope = std::move(loss.slope);
  }
  if (shape_.moe.z_coefficient <= 0) return;
  LossTerms z = aux;
  z.coefficient = shape_.moe.z_coefficient;
  DeviceLoss loss = device_z_loss(scores.own_logits, z);
  placed.z_sum = std::move(loss.sum);
  routing.z_slope = std::move(loss.slope);
}

void Experts::add_bias_gradient_on_device(const DeviceRouting& routing) const {
  const int64_t sum = routing.rows() * routing.per_token();
  parameters_.router_bias.grad.add_(routing.routed.mul(rules_.experts).sub(sum).to(at::kFloat));
}

void Experts::count_loads_on_device(const DeviceRouting& routing) {
  const at::TensorOptions options = at::TensorOptions(routing.routed.device()).dtype(at::kDouble);
  if (!device_loads_.defined()) device_loads_ = at::zeros({static_cast<int64_t>(load_numbers())}, options);
  device_loads_.narrow(0, 0, rules_.experts).add_(routing.routed);
  const auto extra = [&](int64_t which) { return device_loads_.select(0, rules_.experts + which); };
  extra(0).add_(routing.kept.logical_not().sum());
  if (routing.aux_sum.defined() && (by_last_step() || exchange_->tells_sums())) extra(1).add_(routing.aux_sum);  // of own rows, or of all
  if (routing.z_sum.defined()) extra(2).add_(routing.z_sum);
}

void Experts::add_device_loads(std::vector<double>& loads) {
  if (!device_loads_.defined()) return;
  const at::Tensor numbers = std::exchange(device_loads_, {}).to(at::kCPU);
  const double* const from = numbers.const_data_ptr<double>();
  for (size_t i = 0; i < loads.size(); ++i) loads[i] += from[i];
}

}  // namespace lockstep::nn
