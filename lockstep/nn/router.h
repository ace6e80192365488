// The router's numbers, fp32 on the host: scores, the losses that keep experts in balance, and the gradient of the logits (Shazeer et al.
// 2017; Fedus et al. 2021; Zoph et al., ST-MoE, 2022, for the z-loss; DeepSeek-AI 2024 for sigmoid scores). Pure functions. All losses are sums
// over valid targets: sequence b of S tokens counts v_b times its mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/nn/routing.h"

namespace lockstep::nn {

// logits [rows, E] fp32 of the CPU -> what experts are chosen by: softmax over the experts (softmax, expert_choice), sigmoid, or
// the logits themselves (softmax_after_topk).
at::Tensor router_scores(const at::Tensor& logits, config::Router router);

// Scores [rows, E] as probabilities of the auxiliary loss: softmax of the logits; for sigmoid scores their share of the row's sum.
at::Tensor router_probabilities(const at::Tensor& scores, config::Router router);

// sum_b v_b E sum_e f_be P_be: f_be the share of sequence b's assignments that went to e, dropped ones too, a constant; P_be the mean of its
// probabilities [B S, E]. Into aux_sum, and with `coefficient` into aux_slope. `assignments`: of all rows, token choice.
void add_aux_loss(Routing& routing, const at::Tensor& probabilities, std::span<const Assignment> assignments,
                  std::span<const double> valid, double coefficient);

// The same with the shares [E] of an earlier batch in the place of f_be, so that no row depends on others: over own rows alone.
// own_probabilities [T, E].
void add_aux_loss_of_shares(Routing& routing, const at::Tensor& own_probabilities, std::span<const double> shares,
                            std::span<const double> valid, double coefficient);

// sum over own rows of v_b / S (log sum_e exp(logit_e))^2. own_logits [T, E]. Into z_sum, and with `coefficient` into z_slope.
void add_z_loss(Routing& routing, const at::Tensor& own_logits, std::span<const double> valid, double coefficient);

// own logits [T, E] become their gradient: that of the weights, dweights [N] fp32 in the order of sending, and of both losses.
// No gradient goes through the choice, nor through a bias of the selection.
void router_backward(const at::Tensor& logits, const at::Tensor& dweights, const Routing& routing, const RoutingRules& rules);

}  // namespace lockstep::nn
