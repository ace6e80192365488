#include "lockstep/nn/norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/addmv.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>

#include <utility>

#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm_cpu.h"

namespace lockstep::nn {

Norm::Norm(Parameter weight, Parameter bias, double eps)
    : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps) {}

at::Tensor Norm::forward(const at::Tensor& x, Saved* saved) { return forward_sum({}, x, saved); }

at::Tensor Norm::forward_sum(const at::Tensor& branch, const at::Tensor& x, Saved* saved) {
  Saved kept{.x = branch.defined() ? branch : x, .mean = {}, .rstd = {}, .dy = {}};
  at::Tensor y;
  if (x.is_cpu()) {
    NormStatistics statistics;
    y = norm_cpu(x, branch, {.weight = weight_.value, .bias = bias_.value, .eps = eps_}, statistics);
    kept.mean = std::move(statistics.mean);
    kept.rstd = std::move(statistics.rstd);
  } else {
    if (branch.defined()) kept.x.add_(x);
    y = normalize(kept.x, kept);
  }
  if (saved) *saved = std::move(kept);
  return y;
}

at::Tensor Norm::backward_input(const at::Tensor& dy, Saved& saved, const at::Tensor& residual) {
  saved.dy = dy;
  if (dy.is_cpu())
    return norm_backward_cpu(dy, saved.x, residual, {.weight = weight_.value, .bias = bias_.value, .eps = eps_},
                             {.mean = saved.mean, .rstd = saved.rstd});
  at::Tensor dx = input_gradient(dy, saved);
  return residual.defined() ? dx.add_(residual) : dx;
}

void Norm::backward_weight(Saved& saved) {
  if (saved.dy.is_cpu())
    norm_backward_weight_cpu(saved.dy, saved.x, {.mean = saved.mean, .rstd = saved.rstd},
                             {.weight = weight_.grad, .bias = bias_.grad, .eps = eps_});
  else
    add_weight_gradient(saved);
  saved = {};
}

LayerNorm::LayerNorm(Parameter weight, Parameter bias, double eps) : Norm(std::move(weight), std::move(bias), eps) {}

at::Tensor LayerNorm::normalize(const at::Tensor& x, Saved& saved) const {
  auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight_.value, bias_.value, eps_);
  saved.mean = mean;
  saved.rstd = rstd;
  return y;
}

at::Tensor LayerNorm::input_gradient(const at::Tensor& dy, const Saved& saved) const {
  return std::get<0>(at::native_layer_norm_backward(dy, saved.x, {dy.size(-1)}, saved.mean, saved.rstd, weight_.value,
                                                    bias_.value, {true, false, false}));
}

void LayerNorm::add_weight_gradient(const Saved& saved) {
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      saved.dy, saved.x, {saved.x.size(-1)}, saved.mean, saved.rstd, weight_.value, bias_.value, {false, true, true});
  weight_.grad.add_(dweight);
  bias_.grad.add_(dbias);
}

RmsNorm::RmsNorm(Parameter weight, double eps) : Norm(std::move(weight), {}, eps) {}

at::Tensor RmsNorm::normalize(const at::Tensor& x, Saved& saved) const {
  const double size = static_cast<double>(x.size(-1));
  // The square of the 2-norm is the sum of squares, without a temporary of x's size.
  saved.rstd = at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, at::kFloat);
  saved.rstd.square_().div_(size).add_(eps_).rsqrt_();
  return at::mul(x, saved.rstd).to(x.scalar_type()).mul_(weight_.value);
}

// With g = dy * weight: dx = rstd * g - x * rstd^3 / D * sum(g * x).
at::Tensor RmsNorm::input_gradient(const at::Tensor& dy, const Saved& saved) const {
  const double size = static_cast<double>(dy.size(-1));
  at::Tensor g = at::mul(dy, weight_.value).to(at::kFloat);
  at::Tensor along_x = at::sum(at::mul(g, saved.x), {-1}, /*keepdim=*/true);
  along_x.mul_(saved.rstd.pow(3)).div_(size);
  return g.mul_(saved.rstd).addcmul_(saved.x.to(at::kFloat), along_x, -1).to(dy.scalar_type());
}

void RmsNorm::add_weight_gradient(const Saved& saved) {
  const at::Tensor product = at::mul(flatten_rows(saved.dy).to(at::kFloat), flatten_rows(saved.x));
  weight_.grad.addmv_(product.t(), saved.rstd.view({-1}));  // sum over rows of dy * x * rstd
}

}  // namespace lockstep::nn
