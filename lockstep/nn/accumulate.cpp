#include "lockstep/nn/accumulate.h"

#include <ATen/ops/_index_put_impl.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/mm.h>

#include "lockstep/nn/accumulate_cpu.h"
#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn {

void accumulate_matmul(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == grad.scalar_type()) {
    grad.addmm_(a, b);
  } else if (grad.is_cpu()) {
    add_cast_cpu(grad, at::mm(a, b));
  } else {
    grad.add_(at::mm(a, b));
  }
}

void accumulate_row_sum(const at::Tensor& grad, const at::Tensor& rows) {
  if (grad.is_cuda()) return cuda::bias_backward(rows, grad);
  add_row_sum_cpu(grad, rows);
}

void accumulate_rows(const at::Tensor& grad, const at::Tensor& index, const at::Tensor& rows) {
  const at::Tensor values = rows.to(at::kFloat);
  // index_add_ is sequential on the CPU but uses atomics on CUDA, where index_put_ sorts first. `unsafe`: forward has looked
  // at the same indices already, and older LibTorchs ask the device for the largest one.
  if (grad.is_cuda()) {
    at::Tensor sum = grad;
    at::_index_put_impl_(sum, {index}, values, /*accumulate=*/true, /*unsafe=*/true);
  } else {
    grad.index_add_(0, index, values);
  }
}

}  // namespace lockstep::nn
