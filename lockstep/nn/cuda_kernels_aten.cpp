// cuda_kernels.h from LibTorch's operators, for builds without our own kernels.
#include <ATen/core/Reduction.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/add.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn::cuda {
namespace {

at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// xhat in fp32.
at::Tensor normalised(const NormKept& kept) {
  const at::Tensor x = kept.x.to(at::kFloat);
  return (kept.mean.defined() ? x.sub(kept.mean) : x).mul(kept.rstd);
}

}  // namespace

void gelu_tanh_backward(const at::Tensor& dy, at::Tensor& h) { at::gelu_backward_out(h, dy, h, "tanh"); }

at::Tensor swiglu(const at::Tensor& h) {
  const int64_t size = h.size(-1) / 2;
  return at::silu(h.narrow(-1, 0, size)).mul_(h.narrow(-1, size, size));
}

void swiglu_backward(const at::Tensor& dy, at::Tensor& h) {
  const int64_t size = h.size(-1) / 2;
  at::Tensor gate = h.narrow(-1, 0, size);
  at::Tensor up = h.narrow(-1, size, size);
  const at::Tensor dy_up = at::mul(dy, up);
  at::silu_out(up, gate);  // up is read for the last time above
  up.mul_(dy);
  at::silu_backward_out(gate, dy_up, gate);
}

void rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, double direction) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor cos = cosine.view({x.size(1), 1, half});
  const at::Tensor sin = sine.view({x.size(1), 1, half});
  at::Tensor first = x.narrow(-1, 0, half);
  at::Tensor second = x.narrow(-1, half, half);
  const at::Tensor old_first = first.clone();
  first.mul_(cos).addcmul_(second, sin, -direction);
  second.mul_(cos).addcmul_(old_first, sin, direction);
}

at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& targets) {
  at::Tensor p = at::_log_softmax(logits.to(at::kFloat), 1, /*half_to_float=*/false);
  const at::Tensor known = targets.ge(0).logical_and_(targets.lt(logits.size(1)));
  const at::Tensor ignored = targets.eq(kIgnoredTarget);
  const at::Tensor target = at::where(known, targets, at::full({}, kIgnoredTarget, targets.options()));
  at::Tensor loss = at::nll_loss(p, target, {}, at::Reduction::Sum, kIgnoredTarget);
  // As the kernel does it: a target that is no column makes the loss NaN.
  loss = at::where(known.logical_or(ignored).all(), loss, at::full({}, NAN, loss.options()));
  p.exp_().scatter_(1, target.clamp_min(0).unsqueeze(1), -1, "add");
  logits.copy_(p.mul_(known.unsqueeze(1)));
  return loss;
}

NormResult norm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias,
                double eps) {
  const at::Tensor sum = residual.defined() ? at::add(x, residual) : x;
  if (bias.defined()) {
    auto [y, mean, rstd] = at::native_layer_norm(sum, {x.size(-1)}, weight, bias, eps);
    return {.y = y, .sum = sum, .mean = mean.to(at::kFloat), .rstd = rstd.to(at::kFloat)};
  }
  const at::Tensor wide = sum.to(at::kFloat);
  const at::Tensor rstd = wide.square().mean({-1}, /*keepdim=*/true).add_(eps).rsqrt_();
  return {.y = wide.mul(rstd).mul_(weight).to(x.scalar_type()), .sum = sum, .mean = {}, .rstd = rstd};
}

at::Tensor norm_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight,
                         const at::Tensor& dresidual) {
  const at::Tensor xhat = normalised(kept);
  at::Tensor g = at::mul(dy.to(at::kFloat), weight);
  at::Tensor dx = g.sub(xhat.mul(g.mul(xhat).mean({-1}, /*keepdim=*/true)));
  if (kept.mean.defined()) dx.sub_(g.mean({-1}, /*keepdim=*/true));
  dx.mul_(kept.rstd);
  if (dresidual.defined()) dx.add_(dresidual);
  return dx.to(dy.scalar_type());
}

void norm_weight_backward(const at::Tensor& dy, const NormKept& kept, const at::Tensor& weight_grad,
                          const at::Tensor& bias_grad) {
  weight_grad.add_(as_rows(dy.to(at::kFloat).mul(normalised(kept))).sum(0));
  if (bias_grad.defined()) bias_backward(dy, bias_grad);
}

void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad) {
  bias_grad.add_(at::sum(as_rows(dy), {0}, /*keepdim=*/false, at::kFloat));
}

void adamw(const std::vector<AdamWTensors>& pieces, const AdamWSettings& settings) {
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> values, grads, exp_avgs, exp_avg_sqs, steps;
    for (const AdamWTensors& piece : pieces) {
      if (piece.decay != decay) continue;
      values.push_back(piece.value);
      grads.push_back(piece.grad.mul(settings.scale));
      exp_avgs.push_back(piece.exp_avg);
      exp_avg_sqs.push_back(piece.exp_avg_sq);
      steps.push_back(at::full({}, static_cast<double>(settings.step), piece.value.options()));
    }
    if (values.empty()) continue;
    at::_fused_adamw_(values, grads, exp_avgs, exp_avg_sqs, {}, steps, settings.lr, settings.beta1, settings.beta2,
                      decay ? settings.weight_decay : 0, settings.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
  for (const AdamWTensors& piece : pieces)
    if (piece.copy.defined()) piece.copy.copy_(piece.value);
}

at::Tensor square_sum(const at::Tensor& values) { return values.to(at::kDouble).square_().sum(); }

void mark_nonfinite(const std::vector<WatchedPiece>& pieces, const at::Tensor& flags) {
  for (const WatchedPiece& piece : pieces) {
    if (piece.values.numel() == 0) continue;
    const auto [least, most] = at::aminmax(piece.values);  // a NaN is both
    const at::Tensor finite = least.abs().maximum(most.abs()).lt(INFINITY);
    flags.select(0, piece.flag).bitwise_or_(finite.logical_not());
  }
}

// Which device it is only CUDA could say: LibTorch, that knows, picks its own way.
bool multiplies_groups(at::Device device) { return device.is_cuda(); }

at::Tensor dropout_mask(const MaskDraw& draw, at::IntArrayRef shape, at::Device device) {
  return dropout_mask_cpu(draw, shape).to(device);
}

}  // namespace lockstep::nn::cuda
