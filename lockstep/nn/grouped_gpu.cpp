#include "lockstep/nn/grouped_gpu.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/cuda_kernels.h"
#include "lockstep/nn/upload.h"

namespace lockstep::nn {
namespace {

constexpr int64_t kAlignment = 16;            // bytes that the kernel moves at a time
constexpr size_t kMostGroups = 1023;          // of a launch
constexpr int64_t kProductBytes = 256 << 20;  // of the gradients of one call, before they are added

using Sizes = std::span<const int64_t>;

int64_t sum_of(Sizes sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

// Where each group ends, on the device.
at::Tensor ends_of(Sizes sizes, at::Device device) {
  std::vector<int32_t> ends;
  int64_t end = 0;
  for (const int64_t size : sizes) ends.push_back(static_cast<int32_t>(end += size));
  return upload(std::span<const int32_t>(ends), device);
}

bool many(Sizes sizes) { return sizes.size() > 1 && sizes.size() <= kMostGroups && sum_of(sizes) <= std::numeric_limits<int32_t>::max(); }

// dy^T x of the groups in one call, added. A kernel may leave the product of no rows as it found the memory (pytorch/pytorch #172439).
void add_products(const at::Tensor& dy, const at::Tensor& x, Sizes sizes, const at::Tensor& grad) {
  const at::Tensor products = at::_grouped_mm(dy.t(), x, ends_of(sizes, dy.device()));
  for (size_t group = 0; group < sizes.size(); ++group)
    if (sizes[group] == 0) products.select(0, static_cast<int64_t>(group)).zero_();
  grad.add_(products);
}

void add_one_by_one(const at::Tensor& dy, const at::Tensor& x, Sizes sizes, const at::Tensor& grad) {
  int64_t begin = 0;
  for (size_t group = 0; group < sizes.size(); begin += sizes[group++]) {
    if (sizes[group] == 0) continue;
    const at::Tensor here = dy.narrow(0, begin, sizes[group]);
    accumulate_matmul(grad.select(0, static_cast<int64_t>(group)), here.t(), x.narrow(0, begin, sizes[group]));
  }
}

}  // namespace

bool fits_one_call(const at::Tensor& left, const at::Tensor& right) {
  const auto fits = [](const at::Tensor& operand) {
    const bool whole = operand.size(-1) * operand.element_size() % kAlignment == 0 &&
                       (operand.dim() < 3 || operand.size(-2) * operand.element_size() % kAlignment == 0);
    return operand.scalar_type() == at::kBFloat16 && operand.is_contiguous() && whole &&
           reinterpret_cast<uintptr_t>(operand.const_data_ptr()) % kAlignment == 0;
  };
  return fits(left) && fits(right);
}

GroupForm group_form(const at::Tensor& left, const at::Tensor& right) {
  return fits_one_call(left, right) && cuda::multiplies_groups(left.device()) ? GroupForm::kOneCall : GroupForm::kLoop;
}

at::Tensor multiply_groups(const at::Tensor& rows, const at::Tensor& factors, Sizes sizes, GroupForm form) {
  LOCKSTEP_CHECK_EQ(sum_of(sizes), rows.size(0), "rows of all groups");
  LOCKSTEP_CHECK_EQ(std::ssize(sizes), factors.size(0), "groups");
  if (form == GroupForm::kOneCall && rows.size(0) > 0 && many(sizes))
    return at::_grouped_mm(rows, factors, ends_of(sizes, rows.device()));
  at::Tensor out = at::empty({rows.size(0), factors.size(2)}, rows.options());
  int64_t begin = 0;
  for (size_t group = 0; group < sizes.size(); begin += sizes[group++]) {
    if (sizes[group] == 0) continue;
    at::Tensor target = out.narrow(0, begin, sizes[group]);
    at::mm_out(target, rows.narrow(0, begin, sizes[group]), factors.select(0, static_cast<int64_t>(group)));
  }
  return out;
}

void accumulate_groups(const at::Tensor& dy, const at::Tensor& x, Sizes sizes, const at::Tensor& grad, GroupForm form) {
  LOCKSTEP_CHECK_EQ(sum_of(sizes), dy.size(0), "rows of all groups");
  LOCKSTEP_CHECK_EQ(std::ssize(sizes), grad.size(0), "groups");
  if (form == GroupForm::kLoop) return add_one_by_one(dy, x, sizes, grad);
  const int64_t each = std::max<int64_t>(1, grad.size(1) * grad.size(2) * dy.element_size());
  const auto most = static_cast<size_t>(std::max<int64_t>(1, kProductBytes / each));
  int64_t begin = 0;
  for (size_t first = 0; first < sizes.size(); first += most) {
    const Sizes some = sizes.subspan(first, std::min(most, sizes.size() - first));
    const int64_t rows = sum_of(some);
    const at::Tensor some_dy = dy.narrow(0, begin, rows), some_x = x.narrow(0, begin, rows);
    const at::Tensor some_grad = grad.narrow(0, static_cast<int64_t>(first), std::ssize(some));
    begin += rows;
    if (rows == 0) continue;
    many(some) ? add_products(some_dy, some_x, some, some_grad) : add_one_by_one(some_dy, some_x, some, some_grad);
  }
}

}  // namespace lockstep::nn
