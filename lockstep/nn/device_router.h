// The numbers of router.h on the device that has the logits, in LibTorch's operators: the same formulas, fp32, sums of losses fp64. The host
// reads none of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/nn/device_routing.h"

namespace lockstep::nn {

// router_scores and router_probabilities; logits and scores [rows, E] fp32.
at::Tensor device_scores(const at::Tensor& logits, config::Router router);
at::Tensor device_probabilities(const at::Tensor& scores, config::Router router);

// What a loss is taken with: valid [B] fp64 on the device; length, begin and parts as Routing has them.
struct LossTerms {
  const at::Tensor& valid;
  double coefficient = 0;
  int64_t length = 1;
  int64_t begin = 0;
  int64_t parts = 1;
  int64_t rows_of_sequence() const { return length / parts; }
};
struct DeviceLoss {
  at::Tensor sum;    // fp64, 0-d, without the coefficient
  at::Tensor slope;  // fp32, as Routing::aux_slope or z_slope
};
// add_aux_loss: probabilities [B S, E] and experts [B S, k] of all rows.
DeviceLoss device_aux_loss(const at::Tensor& probabilities, const at::Tensor& expert, const LossTerms& terms);
// add_aux_loss_of_shares: own_probabilities [T, E].
DeviceLoss device_aux_loss_of_shares(const at::Tensor& own_probabilities, std::span<const double> shares, const LossTerms& terms);
// add_z_loss: own_logits [T, E].
DeviceLoss device_z_loss(const at::Tensor& own_logits, const LossTerms& terms);

// router_backward: own logits [T, E] become their gradient; dweights [T k] fp32, zero where dropped. `routing` has on_device.
void device_router_backward(const at::Tensor& logits, const at::Tensor& dweights, const Routing& routing, const RoutingRules& rules);

}  // namespace lockstep::nn
