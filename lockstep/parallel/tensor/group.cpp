#include "lockstep/parallel/tensor/group.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/program/planned_calls.h"

namespace lockstep::parallel {
namespace {

// `rows` as a buffer of `padded` rows; the same memory where nothing is to be added.
at::Tensor padded(const at::Tensor& rows, int64_t padded_rows) {
  return rows.size(0) == padded_rows ? rows : at::constant_pad_nd(rows, {0, 0, 0, padded_rows - rows.size(0)});
}

}  // namespace

TensorGroup::TensorGroup(comm::Communicator& communicator, TensorOptions options)
    : communicator_(communicator), options_(options) {}

nn::Pending TensorGroup::pending(comm::Work work, const char* what, at::Tensor result) {
  return [this, work = std::move(work), what, result = std::move(result)]() mutable {
    work.wait();
    exposed_[what] += work.exposed_seconds();
    return std::move(result);
  };
}

comm::CallOptions TensorGroup::call(const program::CallId& id, program::Collective collective, const at::Tensor& whole,
                                    When when) const {
  const program::PlannedCall planned = program::tensor_call(id, collective, whole.numel(), static_cast<int64_t>(whole.element_size()), size());
  return {.id = planned.id, .algorithm = planned.algorithm, .blocking = when == When::kNow || !options_.overlap};
}

nn::Pending TensorGroup::all_reduce(const at::Tensor& tensor, const program::CallId& id, When when) {
  comm::Work work = communicator_.all_reduce(tensor, call(id, program::Collective::kAllReduce, tensor, when));
  return pending(std::move(work), "all_reduce", tensor);
}

nn::Pending TensorGroup::gather_rows(const at::Tensor& local, int64_t rows, const program::CallId& id, When when) {
  LOCKSTEP_CHECK_EQ(local.size(0), local_rows(rows).size(), program::call_text(id), ": of ", rows, " rows");
  const int64_t part = mesh::padded_part(rows, size());
  const at::Tensor whole = at::empty({part * size(), local.size(1)}, local.options());
  comm::Work work =
      communicator_.all_gather(padded(local, part), whole, call(id, program::Collective::kAllGather, whole, when));
  return pending(std::move(work), "all_gather", whole.narrow(0, 0, rows));
}

nn::Pending TensorGroup::scatter_rows(const at::Tensor& whole, const program::CallId& id, When when) {
  const int64_t rows = whole.size(0), part = mesh::padded_part(rows, size());
  const at::Tensor source = padded(whole, part * size());
  const at::Tensor local = at::empty({part, whole.size(1)}, whole.options());
  comm::Work work =
      communicator_.reduce_scatter(source, local, call(id, program::Collective::kReduceScatter, source, when));
  return pending(std::move(work), "reduce_scatter", local.narrow(0, 0, local_rows(rows).size()));
}

nn::Pending TensorGroup::reduce_output(const at::Tensor& partial, const program::CallId& id, When when) {
  return options_.sequence_parallel ? scatter_rows(nn::flatten_rows(partial), id, when)
                                    : all_reduce(partial, id, when);
}

}  // namespace lockstep::parallel
