#include "lockstep/nn/gated_norm.h"

#include <ATen/TensorOperators.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/gated_norm_cpu.h"
#include "lockstep/nn/gated_norm_device.h"

namespace lockstep::nn {
namespace {

void check_rows(const at::Tensor& x, const at::Tensor& like) {
  LOCKSTEP_CHECK(x.dim() == 2 && x.sizes() == like.sizes() && x.scalar_type() == like.scalar_type(), x.sizes(), " beside ", like.sizes());
  LOCKSTEP_CHECK(x.stride(1) == 1, "rows are not contiguous: ", x.strides());
}

}  // namespace

GatedNorm::GatedNorm(Parameter weight, int64_t groups_here, int64_t columns_of_group, double eps, std::unique_ptr<RowSums> sums, double factor)
    : weight_(std::move(weight)),
      groups_(groups_here),
      columns_of_group_(columns_of_group),
      eps_(eps),
      sums_(std::move(sums)),
      factor_(factor) {
  LOCKSTEP_CHECK_EQ(weight_.defined(), groups_ > 0, "a norm has a weight");
  LOCKSTEP_CHECK(!sums_ || groups_ == 1, groups_, " groups of columns here, each in several places");
}

void GatedNorm::check_columns(const at::Tensor& x) const {
  if (groups_ == 0) return;
  LOCKSTEP_CHECK_EQ(x.size(1), weight_.value.numel());
  if (sums_)
    LOCKSTEP_CHECK(columns_of_group_ >= x.size(1), columns_of_group_, " columns in all, here ", x.size(1));
  else
    LOCKSTEP_CHECK_EQ(groups_ * columns_of_group_, x.size(1));
}

at::Tensor GatedNorm::forward(const at::Tensor& x, const at::Tensor& z, Saved* saved) {
  check_rows(x, x);
  check_rows(z, x);
  check_columns(x);
  const GatedRows rows{.x = x, .z = z, .weight = weight_.value, .groups = groups_};
  at::Tensor rstd;
  if (groups_ > 0) {
    const at::Tensor squares = x.is_cpu() ? gated_squares_cpu(rows) : gated_squares_device(rows);
    if (sums_) sums_->sum_forward(squares);
    rstd = (squares / static_cast<double>(columns_of_group_) + eps_).rsqrt();
  }
  if (saved) *saved = {.x = x, .z = z, .rstd = rstd, .dout = {}};
  at::Tensor out = x.is_cpu() ? gated_outputs_cpu(rows, rstd) : gated_outputs_device(rows, rstd);
  return factor_ == 1 ? out : out.mul_(factor_);
}

at::Tensor GatedNorm::backward_input(const at::Tensor& dout, Saved& saved, const at::Tensor& dz) {
  check_rows(dout, saved.x);
  check_rows(dz, saved.x);
  const GatedRows rows{.x = saved.x, .z = saved.z, .weight = weight_.value, .groups = groups_};
  const bool cpu = dout.is_cpu();
  if (factor_ != 1) dout.mul_(factor_);
  at::Tensor shares;
  if (groups_ > 0) {
    shares = cpu ? gated_along_cpu(rows, dout) : gated_along_device(rows, dout);
    if (sums_) sums_->sum_backward(shares);
    shares.mul_(saved.rstd.square().div_(static_cast<double>(columns_of_group_)));
  }
  saved.dout = dout;
  return cpu ? gated_backward_cpu(rows, saved.rstd, shares, dout, dz) : gated_backward_device(rows, saved.rstd, shares, dout, dz);
}

void GatedNorm::backward_weight(Saved& saved) {
  if (groups_ > 0) {
    const GatedRows rows{.x = saved.x, .z = saved.z, .weight = weight_.value, .groups = groups_};
    if (saved.dout.is_cpu())
      gated_backward_weight_cpu(rows, saved.rstd, saved.dout, weight_.grad);
    else
      gated_backward_weight_device(rows, saved.rstd, saved.dout, weight_.grad);
  }
  saved = {};
}

}  // namespace lockstep::nn
