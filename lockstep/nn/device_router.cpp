#include "lockstep/nn/device_router.h"

#include <ATen/ops/logsumexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "lockstep/base/check.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

using config::Router;

constexpr double kTiny = 1e-20;  // added to sums of sigmoid scores, as on the host

at::Tensor row_sum(const at::Tensor& matrix) { return matrix.sum(1, /*keepdim=*/true); }

// A value [B] or [B, E] of each sequence -> that of each own row, [T, 1] or [T, E].
at::Tensor by_row(const at::Tensor& of_sequences, int64_t rows_of_sequence, int64_t begin, int64_t rows) {
  const at::Tensor values = of_sequences.dim() == 1 ? of_sequences.unsqueeze(1) : of_sequences;
  const int64_t sequences = values.size(0), width = values.size(1);
  return values.unsqueeze(1).expand({sequences, rows_of_sequence, width}).reshape({sequences * rows_of_sequence, width}).narrow(0, begin, rows);
}

// Gradient by x of softmax(x) = p, times dp.
at::Tensor softmax_gradient(const at::Tensor& p, const at::Tensor& dp) { return p.mul(dp.sub(row_sum(p.mul(dp)))); }

// Of shares s / (sum of s + tiny) by s.
at::Tensor share_gradient(const at::Tensor& s, const at::Tensor& dshare) {
  const at::Tensor sum = row_sum(s).add(kTiny);
  return dshare.sub(row_sum(s.mul(dshare)).div(sum)).div(sum);
}

// What comes of the weights and of the auxiliary loss. dweights [T, k]; aux [T, E] or undefined.
at::Tensor gradient_of_sigmoid(const at::Tensor& logits, const at::Tensor& dweights, const at::Tensor& aux, const DeviceRouting& routing,
                               double scale) {
  const at::Tensor s = at::sigmoid(logits);
  const at::Tensor of_chosen = share_gradient(s.gather(1, routing.expert), dweights).mul(scale);
  at::Tensor ds = at::zeros_like(s).scatter_(1, routing.expert, of_chosen);
  if (aux.defined()) ds = ds.add(share_gradient(s, aux));
  return ds.mul(s).mul(s.neg().add(1));
}

at::Tensor gradient_of_softmax(const at::Tensor& p, const at::Tensor& dweights, const at::Tensor& aux, const DeviceRouting& routing,
                               double scale) {
  const at::Tensor dp = at::zeros_like(p).scatter_(1, routing.expert, dweights.mul(scale));
  return softmax_gradient(p, aux.defined() ? dp.add(aux) : dp);
}

at::Tensor gradient_after_topk(const at::Tensor& p, const at::Tensor& dweights, const at::Tensor& aux, const DeviceRouting& routing,
                               double scale) {
  const at::Tensor dot = row_sum(routing.weight.mul(dweights));
  const at::Tensor dx = at::zeros_like(p).scatter_(1, routing.expert, routing.weight.mul(dweights.sub(dot.div(scale))));
  return aux.defined() ? dx.add(softmax_gradient(p, aux)) : dx;
}

}  // namespace

at::Tensor device_scores(const at::Tensor& logits, Router router) {
  if (router == Router::kSoftmaxAfterTopk) return logits;
  return router == Router::kSigmoid ? at::sigmoid(logits) : at::softmax(logits, 1);
}

at::Tensor device_probabilities(const at::Tensor& scores, Router router) {
  if (router == Router::kSigmoid) return scores.div(row_sum(scores).add(kTiny));
  return router == Router::kSoftmaxAfterTopk ? at::softmax(scores, 1) : scores;
}

DeviceLoss device_aux_loss(const at::Tensor& probabilities, const at::Tensor& expert, const LossTerms& terms) {
  const int64_t rows = probabilities.size(0), experts = probabilities.size(1), sequences = terms.valid.numel(), each = expert.size(1);
  LOCKSTEP_CHECK_EQ(rows, sequences * terms.length, "rows of ", sequences, " sequences");
  const at::Tensor marked = at::zeros({rows, experts}, expert.options()).scatter_(1, expert, 1);
  const auto of_sequences = [&](const at::Tensor& matrix) {
    return matrix.view({sequences, terms.length, experts}).sum(1, /*keepdim=*/false, at::kDouble);
  };
  const auto tokens = static_cast<double>(terms.length);
  const at::Tensor factor = of_sequences(marked).mul(terms.valid.unsqueeze(1)).mul(static_cast<double>(experts))
                                .div(tokens * static_cast<double>(each)).div(tokens);
  return {.sum = factor.mul(of_sequences(probabilities)).sum(), .slope = factor.mul(terms.coefficient).to(at::kFloat)};
}

DeviceLoss device_aux_loss_of_shares(const at::Tensor& own_probabilities, std::span<const double> shares, const LossTerms& terms) {
  const int64_t rows = own_probabilities.size(0), experts = own_probabilities.size(1);
  LOCKSTEP_CHECK_EQ(std::ssize(shares), experts, "shares of experts");
  const double scale = static_cast<double>(experts) / static_cast<double>(terms.length);
  const at::Tensor factor = upload(shares, own_probabilities.device()).unsqueeze(0).mul(terms.valid.unsqueeze(1)).mul(scale);  // [B, E]
  const at::Tensor of_rows = by_row(factor, terms.rows_of_sequence(), terms.begin, rows);
  return {.sum = own_probabilities.to(at::kDouble).mul(of_rows).sum(), .slope = factor.mul(terms.coefficient).to(at::kFloat)};
}

DeviceLoss device_z_loss(const at::Tensor& own_logits, const LossTerms& terms) {
  const auto tokens = static_cast<double>(terms.length);
  const at::Tensor log_sum = at::logsumexp(own_logits, {1}, /*keepdim=*/true).to(at::kDouble);
  const at::Tensor of_rows = by_row(terms.valid, terms.rows_of_sequence(), terms.begin, own_logits.size(0));
  return {.sum = log_sum.mul(log_sum).mul(of_rows).sum().div(tokens), .slope = terms.valid.mul(terms.coefficient / tokens).to(at::kFloat)};
}

void device_router_backward(const at::Tensor& logits, const at::Tensor& dweights, const Routing& routing, const RoutingRules& rules) {
  const DeviceRouting& placed = *routing.on_device;
  const int64_t rows = placed.rows();
  LOCKSTEP_CHECK_EQ(logits.size(0), rows, "own rows");
  LOCKSTEP_CHECK_EQ(dweights.numel(), rows * placed.per_token(), "weights of assignments");
  const at::Tensor of_weights = dweights.view({rows, placed.per_token()}), p = at::softmax(logits, 1);
  const auto of_rows = [&](const at::Tensor& slope) {
    return slope.defined() ? by_row(slope, routing.rows_of_sequence(), routing.begin, rows) : at::Tensor();
  };
  const at::Tensor aux = of_rows(routing.aux_slope), z = of_rows(routing.z_slope);
  at::Tensor gradient = rules.router == Router::kSigmoid ? gradient_of_sigmoid(logits, of_weights, aux, placed, rules.routed_scale)
                        : rules.router == Router::kSoftmax ? gradient_of_softmax(p, of_weights, aux, placed, rules.routed_scale)
                                                           : gradient_after_topk(p, of_weights, aux, placed, rules.routed_scale);
  if (z.defined()) gradient = gradient.add(p.mul(at::logsumexp(logits, {1}, /*keepdim=*/true)).mul(z).mul(2));
  logits.copy_(gradient);
}

}  // namespace lockstep::nn
