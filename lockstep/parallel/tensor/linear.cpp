#include "lockstep/parallel/tensor/linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/nn/accumulate.h"
#include "lockstep/nn/gemm.h"
#include "lockstep/parallel/tensor/own_parameter.h"

namespace lockstep::parallel {

using nn::flatten_rows;
using nn::unflatten_rows;
using program::CallPhase;

namespace {

nn::Parameter weight_of(const LinearSizes& sizes, int cut_dim, const TensorGroup& group) {
  const std::string name = cat(sizes.name, ".weight");
  return own_parameter({.name = name, .shape = {sizes.out, sizes.in}, .cut_dim = cut_dim, .init_std = sizes.init_std, .seed = sizes.seed,
                        .options = sizes.options},
                       group);
}

nn::Parameter bias_of(const LinearSizes& sizes, int cut_dim, const TensorGroup& group) {
  if (!sizes.bias) return {};
  const std::string name = cat(sizes.name, ".bias");
  return own_parameter({.name = name, .shape = {sizes.out}, .cut_dim = cut_dim, .init_std = 0, .options = sizes.options}, group);
}

// This rank's of `columns`.
at::Tensor own_columns(const at::Tensor& x, int64_t columns, const TensorGroup& group) {
  const mesh::Range here = mesh::shard_range(columns, group.size(), group.rank());
  return x.narrow(-1, here.begin, here.size()).contiguous();
}

// [..., columns here] of every rank -> [..., columns]. The collective takes equal parts, and the first rank's is the largest.
at::Tensor gather_columns(const at::Tensor& part, int64_t columns, TensorGroup& group, const program::CallId& id) {
  const int ranks = group.size();
  if (ranks == 1) return part;
  const at::Tensor rows = flatten_rows(part);
  const int64_t largest = mesh::shard_range(columns, ranks, 0).size(), count = rows.size(0);
  const at::Tensor mine = rows.size(1) == largest ? rows.contiguous() : at::constant_pad_nd(rows, {0, largest - rows.size(1)});
  const at::Tensor all = group.gather_rows(mine, ranks * count, id)().view({ranks, count, largest});
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(all.select(0, rank).narrow(1, 0, mesh::shard_range(columns, ranks, rank).size()));
  return unflatten_rows(at::cat(parts, 1), part);
}

// What goes over the ranks beside the calls of the layer's sums.
program::CallId of_columns(const program::CallId& calls) { return program::named_call(cat(program::call_text(calls), ".columns")); }

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group,
                                           const program::CallId& calls)
    : Linear(std::move(weight), std::move(bias)), group_(group), calls_(calls) {}

ColumnParallelLinear::ColumnParallelLinear(TensorGroup& group, const LinearSizes& sizes, Options options)
    : Linear(weight_of(sizes, 0, group), bias_of(sizes, 0, group)),
      group_(group),
      calls_(program::named_call(sizes.name)),
      gathered_(options.gather_output ? sizes.out : 0) {}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, Saved* saved) {
  const at::Tensor y = part(x, saved);
  return gathered_ > 0 ? gather_columns(y, gathered_, group_, of_columns(calls_).with(CallPhase::kForward)) : y;
}

at::Tensor ColumnParallelLinear::part(const at::Tensor& x, Saved* saved) {
  if (!group_.sequence_parallel()) return Linear::forward(x, saved);
  if (saved) saved->x = x;
  const at::Tensor whole = group_.gather_rows(x, group_.rows(), calls_.with(CallPhase::kForward))();
  return nn::multiply(whole, weight_.value.t(), bias_.value);
}

at::Tensor ColumnParallelLinear::own(const at::Tensor& dy) const { return gathered_ > 0 ? own_columns(dy, gathered_, group_) : dy; }

at::Tensor ColumnParallelLinear::backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = own(dy);
  return input_gradient(saved.dy, TensorGroup::When::kNow)();
}

nn::Pending ColumnParallelLinear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  saved.dy = own(dy);
  if (group_.sequence_parallel()) whole_x_ = gather_input(saved, TensorGroup::When::kBeside);
  return input_gradient(saved.dy, TensorGroup::When::kBeside);
}

void ColumnParallelLinear::backward_weight(Saved& saved) {
  if (group_.sequence_parallel()) {
    if (!whole_x_) whole_x_ = gather_input(saved, TensorGroup::When::kNow);
    saved.x = std::exchange(whole_x_, {})();
  }
  Linear::backward_weight(saved);
}

nn::Pending ColumnParallelLinear::input_gradient(const at::Tensor& dy, TensorGroup::When when) {
  const at::Tensor dx = nn::multiply(flatten_rows(dy), weight_.value);
  return group_.reduce_output(unflatten_rows(dx, dy), calls_.with(CallPhase::kBackward), when);
}

nn::Pending ColumnParallelLinear::gather_input(const Saved& saved, TensorGroup::When when) {
  return group_.gather_rows(saved.x, flatten_rows(saved.dy).size(0), calls_.with(CallPhase::kGather), when);
}

RowParallelLinear::RowParallelLinear(nn::Parameter weight, nn::Parameter bias, TensorGroup& group,
                                     const program::CallId& calls)
    : Linear(std::move(weight), std::move(bias)), group_(group), calls_(calls) {}

RowParallelLinear::RowParallelLinear(TensorGroup& group, const LinearSizes& sizes, Options options)
    : Linear(weight_of(sizes, 1, group), bias_of(sizes, -1, group)),
      group_(group),
      calls_(program::named_call(sizes.name)),
      divided_(options.input_is_parallel ? 0 : sizes.in) {}

at::Tensor RowParallelLinear::forward(const at::Tensor& input, Saved* saved) {
  const at::Tensor x = divided_ > 0 ? own_columns(input, divided_, group_) : input;
  if (saved) saved->x = x;
  // The bias enters the sum once.
  const at::Tensor bias = group_.rank() == 0 ? bias_.value : at::Tensor();
  const at::Tensor partial = nn::multiply(flatten_rows(x), weight_.value.t(), bias);
  return group_.reduce_output(unflatten_rows(partial, x), calls_.with(CallPhase::kForward))();
}

nn::Pending RowParallelLinear::start_backward_input(const at::Tensor& dy, Saved& saved) {
  nn::Pending part = part_of_input_gradient(dy, saved);
  if (divided_ == 0) return part;
  return [this, part = std::move(part)] {
    return gather_columns(part(), divided_, group_, of_columns(calls_).with(CallPhase::kBackward));
  };
}

nn::Pending RowParallelLinear::part_of_input_gradient(const at::Tensor& dy, Saved& saved) {
  if (!group_.sequence_parallel()) return Linear::start_backward_input(dy, saved);
  const int64_t rows = flatten_rows(saved.x).size(0);
  return Linear::start_backward_input(group_.gather_rows(dy, rows, calls_.with(CallPhase::kBackward))(), saved);
}

void RowParallelLinear::backward_weight(Saved& saved) {
  if (!group_.sequence_parallel()) return Linear::backward_weight(saved);
  const at::Tensor dy = flatten_rows(saved.dy);
  nn::accumulate_matmul(weight_.grad, dy.t(), flatten_rows(saved.x));
  if (bias_.defined()) {
    const mesh::Range here = group_.local_rows(dy.size(0));
    nn::accumulate_row_sum(bias_.grad, dy.narrow(0, here.begin, here.size()));
  }
  saved = {};
}

}  // namespace lockstep::parallel
