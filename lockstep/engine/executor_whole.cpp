// What is asked of an executor between steps: whole parameters and gradients.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "lockstep/base/check.h"
#include "lockstep/engine/executor.h"

namespace lockstep::engine {
namespace {

// The pieces of the ranks of tp, side by side.
at::Tensor whole_of_pieces(const arch::ParamSpec& spec, const at::Tensor& piece, comm::Communicator& ranks) {
  if (spec.cut_dim < 0) return piece;
  const at::Tensor mine = at::zeros({spec.largest_numel}, piece.options());
  mine.narrow(0, 0, piece.numel()).copy_(piece.flatten());
  const at::Tensor all = at::empty({ranks.size(), spec.largest_numel}, piece.options());
  ranks.all_gather(mine, all, {.id = program::call_of_parameter(spec.name)}).wait();
  const int dim = spec.cut_dim, copies = spec.copies;
  const int parts = ranks.size() / copies;
  std::vector<at::Tensor> pieces;
  for (int part = 0; part < parts; ++part) {
    std::vector<int64_t> shape = spec.shape;
    int64_t& length = shape[static_cast<size_t>(dim)];
    length = mesh::shard_range(length, parts, part).size();
    pieces.push_back(all.select(0, part * copies).narrow(0, 0, spec.numel() / spec.shape[static_cast<size_t>(dim)] * length)
                         .view(shape));
  }
  return at::cat(pieces, dim);
}

}  // namespace

ParameterStore& Executor::store() {
  LOCKSTEP_CHECK(!end_.pending(), "the update of step ", end_.pending_step(), " is not final");
  joins_.join(program::Resource::kParameters);
  return store_;
}

// `part`: this rank's part of the parameter's unit.
at::Tensor Executor::whole(int param, const at::Tensor& part) {
  const arch::ParamSpec& spec = store_.table().at(static_cast<size_t>(param));
  const arch::FlatUnit& unit = store_.layout().units[store_.unit_of(spec.unit)];
  at::Tensor all = part;
  if (comm::Communicator* sharing = groups_.several(options_.layout.domain(unit.group).shard)) {
    all = at::empty({unit.numel()}, part.options());
    sharing->all_gather(part, all, {.id = program::call_of_parameter(spec.name)}).wait();
  }
  for (const arch::FlatSlot& slot : unit.slots)
    if (slot.param == param) all = all.narrow(0, slot.offset - unit.begin, slot.numel).view(spec.local_shape);
  return tensor_ ? whole_of_pieces(spec, all, *groups_.tensor()) : all;
}

at::Tensor Executor::whole_gradient(int param) {
  const size_t unit = store_.unit_of(store_.table().at(static_cast<size_t>(param)).unit);
  return whole(param, store_.grad_part(unit)).div(static_cast<double>(state_.result.tokens));
}

at::Tensor Executor::whole_value(int param) { return whole_state(param, StateKind::kMaster); }

at::Tensor Executor::whole_state(int param, StateKind kind) {
  joins_.join(program::Resource::kParameters);
  return whole(param, store_.state_part(store_.unit_of(store_.table().at(static_cast<size_t>(param)).unit), kind));
}

}  // namespace lockstep::engine
