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

namespace lockstep::nn {

LayerNorm::LayerNorm(Parameter weight, Parameter bias, double eps)
    : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps) {}

at::Tensor LayerNorm::forward(const at::Tensor& x, Saved* saved) {
  auto [y, mean, rstd] = at::native_layer_norm(x, {x.size(-1)}, weight_.value, bias_.value, eps_);
  if (saved) *saved = {.x = x, .mean = mean, .rstd = rstd, .dy = {}};
  return y;
}

at::Tensor LayerNorm::backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = dy;
  return std::get<0>(at::native_layer_norm_backward(dy, saved.x, {dy.size(-1)}, saved.mean, saved.rstd, weight_.value,
                                                    bias_.value, {true, false, false}));
}

void LayerNorm::backward_weight(Saved& saved) {
  const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
      saved.dy, saved.x, {saved.x.size(-1)}, saved.mean, saved.rstd, weight_.value, bias_.value, {false, true, true});
  weight_.grad.add_(dweight);
  bias_.grad.add_(dbias);
  saved = {};
}

RmsNorm::RmsNorm(Parameter weight, double eps) : weight_(std::move(weight)), eps_(eps) {}

at::Tensor RmsNorm::forward(const at::Tensor& x, Saved* saved) {
  const double size = static_cast<double>(x.size(-1));
  // The square of the 2-norm is the sum of squares, without a temporary of x's size.
  at::Tensor rstd = at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, at::kFloat);
  rstd.square_().div_(size).add_(eps_).rsqrt_();
  at::Tensor y = at::mul(x, rstd).to(x.scalar_type()).mul_(weight_.value);
  if (saved) *saved = {.x = x, .mean = {}, .rstd = rstd, .dy = {}};
  return y;
}

// With g = dy * weight: dx = rstd * g - x * rstd^3 / D * sum(g * x).
at::Tensor RmsNorm::backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = dy;
  const double size = static_cast<double>(dy.size(-1));
  at::Tensor g = at::mul(dy, weight_.value).to(at::kFloat);
  at::Tensor along_x = at::sum(at::mul(g, saved.x), {-1}, /*keepdim=*/true);
  along_x.mul_(saved.rstd.pow(3)).div_(size);
  return g.mul_(saved.rstd).addcmul_(saved.x.to(at::kFloat), along_x, -1).to(dy.scalar_type());
}

void RmsNorm::backward_weight(Saved& saved) {
  const at::Tensor product = at::mul(flatten_rows(saved.dy).to(at::kFloat), flatten_rows(saved.x));
  weight_.grad.addmv_(product.t(), saved.rstd.view({-1}));  // sum over rows of dy * x * rstd
  saved = {};
}

}  // namespace lockstep::nn
