#include "lockstep/nn/device_routing.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "lockstep/base/check.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

constexpr double kLowest = -std::numeric_limits<double>::infinity();
constexpr double kTiny = 1e-20;  // added to sums of sigmoid scores, as on the host

at::TensorOptions numbers(const at::Tensor& like) { return at::TensorOptions(like.device()).dtype(at::kLong); }

// Indices along `dim`, the largest value first, of equal ones the lower index.
at::Tensor descending(const at::Tensor& values, int64_t dim) {
  return std::get<1>(at::sort(values, /*stable=*/true, dim, /*descending=*/true));
}

// [rows, E] int64: 1 at the experts of a row.
at::Tensor marked(const at::Tensor& expert, int64_t experts) {
  return at::zeros({expert.size(0), experts}, numbers(expert)).scatter_(1, expert, 1);
}

// The experts of groups that a row may not choose from, [rows, E] bool. A group's score is the sum of its two best.
at::Tensor forbidden(const at::Tensor& selection, const RoutingRules& rules) {
  const int64_t rows = selection.size(0), size = rules.experts / rules.groups;
  const at::Tensor grouped = selection.reshape({rows, rules.groups, size});
  const at::Tensor scores = size == 1 ? grouped.select(2, 0) : std::get<0>(at::topk(grouped, 2, 2)).sum(2);
  const at::Tensor chosen = marked(descending(scores, 1).narrow(1, 0, rules.top_groups), rules.groups);
  return chosen.eq(0).unsqueeze(2).expand({rows, rules.groups, size}).reshape({rows, rules.experts});
}

// From scores without bias.
at::Tensor weights_of(const at::Tensor& chosen, const RoutingRules& rules) {
  if (rules.router == config::Router::kSoftmax) return chosen.mul(rules.routed_scale);
  if (rules.router == config::Router::kSoftmaxAfterTopk) return at::softmax(chosen, 1).mul(rules.routed_scale);
  return chosen.div(chosen.sum(1, /*keepdim=*/true).add(kTiny)).mul(rules.routed_scale);
}

// Place of each row among those of its sequence and an expert, in the order in which the expert keeps them; [B, S, E], of use where the row
// is the expert's.
at::Tensor places(const DeviceChoice& choice, const RoutingRules& rules, int64_t length) {
  const int64_t rows = choice.expert.size(0), experts = rules.experts;
  const int64_t by_sequence[] = {rows / length, length, experts};
  if (rules.drop == config::Drop::kPosition) return marked(choice.expert, experts).view(by_sequence).cumsum(1).sub(1);
  const at::Tensor weights = at::full({rows, experts}, kLowest, choice.weight.options()).scatter_(1, choice.expert, choice.weight);
  const at::Tensor order = descending(weights.view(by_sequence), 1);
  const at::Tensor place = at::arange(length, numbers(order)).view({1, length, 1}).expand(order.sizes());
  return at::empty_like(order).scatter_(1, order, place);
}

// kept [B, S, E] of each row and expert -> of its own experts.
at::Tensor of_chosen(const at::Tensor& kept, const DeviceChoice& choice, const RoutingRules& rules) {
  return kept.reshape({choice.expert.size(0), rules.experts}).gather(1, choice.expert);
}

void check_length(const DeviceChoice& choice, const RoutingRules& rules, int64_t length) {
  LOCKSTEP_CHECK(rules.capacity_factor.has_value());
  LOCKSTEP_CHECK(length >= 1 && choice.expert.size(0) % length == 0, choice.expert.size(0), " rows in sequences of ", length);
}

}  // namespace

DeviceChoice choose_on_device(const at::Tensor& scores, const at::Tensor& bias, const RoutingRules& rules) {
  LOCKSTEP_CHECK(scores.dim() == 2 && scores.scalar_type() == at::kFloat);
  LOCKSTEP_CHECK_EQ(scores.size(1), rules.experts, "experts");
  LOCKSTEP_CHECK(rules.router != config::Router::kExpertChoice, "experts choose on the host alone");
  at::Tensor selection = bias.defined() ? scores.add(bias) : scores;
  if (rules.groups != rules.top_groups) selection = selection.masked_fill(forbidden(selection, rules), kLowest);
  const at::Tensor expert = descending(selection, 1).narrow(1, 0, rules.per_token).contiguous();
  return {.expert = expert, .weight = weights_of(scores.gather(1, expert), rules)};
}

at::Tensor kept_by_capacity(const DeviceChoice& choice, const RoutingRules& rules, int64_t length) {
  check_length(choice, rules, length);
  return of_chosen(places(choice, rules, length).lt(expert_capacity(*rules.capacity_factor, rules, length)), choice, rules);
}

at::Tensor kept_by_last_load(const DeviceChoice& choice, const RoutingRules& rules, int64_t length, std::span<const double> last) {
  check_length(choice, rules, length);
  LOCKSTEP_CHECK_EQ(std::ssize(last), rules.experts, "loads of experts");
  const double mean = std::accumulate(last.begin(), last.end(), 0.0) / static_cast<double>(rules.experts);
  const double room = *rules.capacity_factor * mean;
  const at::Tensor loads = upload(last, choice.expert.device());
  const int64_t sequences = choice.expert.size(0) / length;
  const at::Tensor assigned = marked(choice.expert, rules.experts).view({sequences, length, rules.experts}).sum(1).to(at::kDouble);
  const at::Tensor most = at::where(loads.le(room), assigned, assigned.mul(room).div(loads).ceil());
  return of_chosen(places(choice, rules, length).lt(most.unsqueeze(1)), choice, rules);
}

int64_t most_of_expert(const RoutingRules& rules, mesh::Range own, int64_t length, bool by_capacity, int64_t parts) {
  if (own.size() == 0 || !by_capacity) return own.size();
  const int64_t here = length / parts, sequences = (own.end - 1) / here - own.begin / here + 1;
  return std::min(own.size(), sequences * expert_capacity(*rules.capacity_factor, rules, length));
}

DeviceRouting place_in_slots(const DeviceChoice& choice, const at::Tensor& kept, mesh::Range own, const RoutingRules& rules, int64_t room) {
  const auto of_own = [&](const at::Tensor& all) { return all.narrow(0, own.begin, own.size()).contiguous(); };
  DeviceRouting routing{.expert = of_own(choice.expert), .weight = of_own(choice.weight), .kept = {}, .slot = {}, .routed = {}};
  routing.kept = kept.defined() ? of_own(kept) : at::ones_like(routing.expert, at::TensorOptions().dtype(at::kBool));
  routing.experts = rules.experts;
  routing.room = room;
  routing.routed = marked(routing.expert, rules.experts).sum(0);
  const at::Tensor sent = at::zeros({own.size(), rules.experts}, numbers(routing.expert)).scatter_(1, routing.expert, routing.kept.to(at::kLong));
  const at::Tensor place = sent.cumsum(0).gather(1, routing.expert).sub(1);
  routing.slot = routing.expert.mul(room).add(place).masked_fill(routing.kept.logical_not(), rules.experts * room);
  return routing;
}

}  // namespace lockstep::nn
