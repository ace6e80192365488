// RMSNorm behind a gate, over equal groups of columns (Dao and Gu, Transformers are SSMs, 2024, section 7.1):
//   y = x silu(z),  out = y / sqrt(mean over its group of y^2 + eps) * weight
// Statistics and sums in fp32. Without groups only the gate: out = y. Then out f, with a fixed factor f (nn/multiplied_linear.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/row_sums.h"

namespace lockstep::nn {

class GatedNorm {
 public:
  struct Saved {
    at::Tensor x, z;  // [rows, n], as they came
    at::Tensor rstd;  // [rows, groups here] fp32; undefined without a norm
    at::Tensor dout;  // [rows, n]: from backward_input, for W
  };

  // weight [n], of the columns here; undefined without a norm. `groups_here`: equal groups of these columns, 0: no norm.
  // `columns_of_group` counts them wherever they are. `sums` brings a group together that others have columns of, all of the columns here
  // being a part of it; null: each group is here whole.
  GatedNorm(Parameter weight, int64_t groups_here, int64_t columns_of_group, double eps, std::unique_ptr<RowSums> sums, double factor = 1);

  // x, z [rows, n] views with contiguous last dim -> [rows, n] contiguous. Again with the same operands: the same bits.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& z, Saved* saved);
  // dout [rows, n], last dim contiguous -> dx [rows, n] contiguous; dz [rows, n], a view with contiguous last dim, is written. Not into the
  // memory of dout, x or z, which W needs. dout is multiplied by the factor in place.
  at::Tensor backward_input(const at::Tensor& dout, Saved& saved, const at::Tensor& dz);
  void backward_weight(Saved& saved);  // releases all of saved

 private:
  void check_columns(const at::Tensor& x) const;

  Parameter weight_;
  int64_t groups_;
  int64_t columns_of_group_;
  double eps_;
  std::unique_ptr<RowSums> sums_;
  double factor_;
};

}  // namespace lockstep::nn
