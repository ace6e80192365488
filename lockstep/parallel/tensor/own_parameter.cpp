#include "lockstep/parallel/tensor/own_parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <span>

#include "lockstep/base/check.h"
#include "lockstep/base/random.h"
#include "lockstep/base/text.h"

namespace lockstep::parallel {
namespace {

struct Part {
  std::vector<int64_t> shape{};
  int64_t first = 0;  // element of the whole one that it begins with
};

Part part_of(const WholeParameter& whole, const TensorGroup& group) {
  LOCKSTEP_CHECK(whole.shape.size() == 1 || whole.shape.size() == 2, whole.name, ": one dim or two, not ", whole.shape.size());
  Part part{.shape = whole.shape};
  if (whole.cut_dim < 0) return part;
  const auto dim = static_cast<size_t>(whole.cut_dim);
  LOCKSTEP_CHECK(dim < whole.shape.size() && whole.shape[dim] >= group.size(), whole.name, ": dim ", whole.cut_dim, " for ",
                 group.size(), " ranks");
  const mesh::Range range = mesh::shard_range(whole.shape[dim], group.size(), group.rank());
  part.shape[dim] = range.size();
  part.first = range.begin * (dim + 1 == whole.shape.size() ? 1 : whole.shape.back());
  return part;
}

// Row by row: those of a part cut along dim 1 lie apart in the whole one.
at::Tensor drawn(const WholeParameter& whole, const Part& part) {
  const at::Tensor values = at::empty(part.shape, at::kFloat);
  const RandomStream stream(whole.seed, cat("init/", whole.name));
  const int64_t width = part.shape.back(), rows = values.numel() / width, stride = whole.shape.back();
  for (int64_t row = 0; row < rows; ++row)
    stream.normal(static_cast<uint64_t>(part.first + row * stride),
                  std::span<float>(values.data_ptr<float>() + row * width, static_cast<size_t>(width)));
  return values.mul_(static_cast<float>(whole.init_std));
}

}  // namespace

nn::Parameter own_parameter(const WholeParameter& whole, const TensorGroup& group) {
  const Part part = part_of(whole, group);
  const at::Tensor value = whole.init_std > 0 ? drawn(whole, part).to(whole.options) : at::zeros(part.shape, whole.options);
  return {.value = value, .grad = at::zeros(part.shape, whole.options.dtype(at::kFloat))};
}

}  // namespace lockstep::parallel
