#include "lockstep/nn/gated_norm_device.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>

#include <algorithm>

namespace lockstep::nn {
namespace {

// [rows, n] -> [rows, groups, n / groups] fp32
at::Tensor grouped(const GatedRows& rows, const at::Tensor& x) {
  return x.to(at::kFloat).reshape({x.size(0), std::max<int64_t>(rows.groups, 1), -1});
}

at::Tensor gated(const GatedRows& rows) {
  const at::Tensor z = grouped(rows, rows.z);
  return grouped(rows, rows.x) * (z * at::sigmoid(z));
}

at::Tensor weighted(const GatedRows& rows, const at::Tensor& x) {
  return rows.weight.defined() ? x * rows.weight.to(at::kFloat).view({1, x.size(1), x.size(2)}) : x;
}

}  // namespace

at::Tensor gated_squares_device(const GatedRows& rows) { return gated(rows).square().sum(-1); }

at::Tensor gated_outputs_device(const GatedRows& rows, const at::Tensor& rstd) {
  at::Tensor y = gated(rows);
  if (rstd.defined()) y = y * rstd.unsqueeze(-1);
  return weighted(rows, y).reshape(rows.x.sizes()).to(rows.x.scalar_type());
}

at::Tensor gated_along_device(const GatedRows& rows, const at::Tensor& dout) {
  return (weighted(rows, grouped(rows, dout)) * gated(rows)).sum(-1);
}

at::Tensor gated_backward_device(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& shares, const at::Tensor& dout,
                                 const at::Tensor& dz) {
  const at::Tensor z = grouped(rows, rows.z), open = at::sigmoid(z), silu = z * open;
  at::Tensor dy = weighted(rows, grouped(rows, dout));
  if (rstd.defined()) dy = (dy - gated(rows) * shares.unsqueeze(-1)) * rstd.unsqueeze(-1);
  dz.copy_((dy * grouped(rows, rows.x) * (open + silu * (1 - open))).reshape(dz.sizes()));
  return (dy * silu).reshape(rows.x.sizes()).to(rows.x.scalar_type());
}

void gated_backward_weight_device(const GatedRows& rows, const at::Tensor& rstd, const at::Tensor& dout, const at::Tensor& dweight) {
  dweight.add_((grouped(rows, dout) * gated(rows) * rstd.unsqueeze(-1)).sum(0).view(dweight.sizes()));
}

}  // namespace lockstep::nn
