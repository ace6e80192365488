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
  const int64_t length = pass.sequences.length, room = exchange_->slots();
  const mesh::Range own = exchange_->own_rows(pass.rows());
  const bool drops = rules_.capacity_factor.has_value();
  const int64_t most = most_of_expert(rules_, own, length, drops && !by_last_step());
  LOCKSTEP_CHECK(most <= room, "up to ", most, " of ", own.size(), " rows for an expert, room for ", room);

  const at::Tensor scores = device_scores(logits, rules_.router);
  const at::Tensor bias = parameters_.router_bias.defined() ? parameters_.router_bias.value.to(at::kFloat) : at::Tensor();
  const DeviceChoice choice = choose_on_device(scores, bias, rules_);
  at::Tensor stays;
  if (drops)
    stays = by_last_step() ? kept_by_last_load(choice, rules_, length, last_loads_) : kept_by_capacity(choice, rules_, length);
  const mesh::Range here = wants_all_rows(pass) ? own : mesh::Range{.begin = 0, .end = own.size()};
  auto placed = std::make_shared<DeviceRouting>(place_in_slots(choice, stays, here, rules_, room));
  auto routing = std::make_shared<Routing>();
  routing->begin = own.begin;
  routing->length = length;
  if (kept) kept->logits = logits.size(0) == own.size() ? logits : logits.narrow(0, own.begin, own.size()).clone();
  if (kept && pass.sequences.valid.defined())
    add_losses_on_device(*routing, *placed, {.scores = scores, .expert = choice.expert, .own_logits = kept->logits, .valid = pass.sequences.valid});
  routing->on_device = std::move(placed);
  return routing;
}

void Experts::add_losses_on_device(Routing& routing, DeviceRouting& placed, const Judged& judged) const {
  const at::Tensor valid = judged.valid.to(at::kDouble);
  const LossTerms aux{.valid = valid, .coefficient = shape_.moe.aux_coefficient, .length = routing.length, .begin = routing.begin};
  if (has_aux_loss()) {
    const int64_t own = placed.rows();
    const bool by_shares = by_last_step();  // of own rows
    const bool cut = by_shares && judged.scores.size(0) != own;
    const at::Tensor probabilities =
        device_probabilities(cut ? judged.scores.narrow(0, routing.begin, own) : judged.scores, rules_.router);
    DeviceLoss loss = by_shares ? device_aux_loss_of_shares(probabilities, last_shares(), aux) : device_aux_loss(probabilities, judged.expert, aux);
    placed.aux_sum = std::move(loss.sum);
    routing.aux_slope = std::move(loss.slope);
  }
  if (shape_.moe.z_coefficient <= 0) return;
  LossTerms z = aux;
  z.coefficient = shape_.moe.z_coefficient;
  DeviceLoss loss = device_z_loss(judged.own_logits, z);
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
