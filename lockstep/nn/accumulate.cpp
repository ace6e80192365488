#include "lockstep/nn/accumulate.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "lockstep/nn/cuda_kernels.h"

namespace lockstep::nn {
namespace {

// grad += product in another dtype. On the CPU ATen casts a whole operand first; by rows that copy stays in cache.
void add_cast(const at::Tensor& grad, const at::Tensor& product) {
  constexpr int64_t kElements = 16384;
  if (!grad.is_cpu()) {
    grad.add_(product);
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kElements / std::max<int64_t>(1, grad.size(1)));
  for (int64_t row = 0; row < grad.size(0); row += rows) {
    const int64_t count = std::min(rows, grad.size(0) - row);
    grad.narrow(0, row, count).add_(product.narrow(0, row, count));
  }
}

}  // namespace

void accumulate_matmul(const at::Tensor& grad, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == grad.scalar_type()) {
    grad.addmm_(a, b);
  } else {
    add_cast(grad, at::mm(a, b));
  }
}

void accumulate_row_sum(const at::Tensor& grad, const at::Tensor& rows) {
  if (grad.is_cuda()) return cuda::bias_backward(rows, grad);
  grad.add_(at::sum(rows, {0}, /*keepdim=*/false, at::kFloat));
}

void accumulate_rows(const at::Tensor& grad, const at::Tensor& index, const at::Tensor& rows) {
  const at::Tensor values = rows.to(at::kFloat);
  // index_add_ is sequential on the CPU but uses atomics on CUDA, where index_put_ sorts first.
  if (grad.is_cuda()) {
    grad.index_put_({index}, values, /*accumulate=*/true);
  } else {
    grad.index_add_(0, index, values);
  }
}

}  // namespace lockstep::nn
