#include "lockstep/parallel/context/group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <vector>

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

std::vector<int64_t> shape_of(std::initializer_list<int64_t> leading, at::IntArrayRef rest) {
  std::vector<int64_t> shape(leading);
  shape.insert(shape.end(), rest.begin(), rest.end());
  return shape;
}

}  // namespace

ContextGroup::ContextGroup(comm::Communicator& communicator, const ContextOptions& options)
    : communicator_(communicator), options_(options) {
  if (options.kind != config::ContextKind::k2d) return;
  LOCKSTEP_CHECK(options.inner && options.outer, "2d of ", size(), " ranks without its inner or outer group");
  LOCKSTEP_CHECK(options.inner->size() * options.outer->size() == size() &&
                     options.outer->rank() * options.inner->size() + options.inner->rank() == rank(),
                 "rank ", rank(), " of ", size(), " is ", options.inner->rank(), " of ", options.inner->size(), " inner and ",
                 options.outer->rank(), " of ", options.outer->size(), " outer ones");
}

void ContextGroup::check(const nn::TokenPlaces& places) const {
  LOCKSTEP_CHECK(places.ranks() == size() && places.rank == rank(), "tokens of rank ", places.rank, " of ", places.ranks(), " on rank ",
                 rank(), " of ", size());
}

comm::Communicator& ContextGroup::over(Over over) {
  if (over == Over::kAll) return communicator_;
  comm::Communicator* const part = over == Over::kInner ? options_.inner : options_.outer;
  LOCKSTEP_CHECK(part, "a group of ", size(), " ranks has no inner and outer ones");
  return *part;
}

comm::CallOptions ContextGroup::call(const program::CallId& id) const {
  return {.id = id, .algorithm = program::Algorithm::kDirect, .blocking = !options_.overlap};
}

nn::Pending ContextGroup::pending(comm::Work work, const char* what, at::Tensor result) {
  return [this, work = std::move(work), what, result = std::move(result)]() mutable {
    work.wait();
    exposed_[what] += work.exposed_seconds();
    return std::move(result);
  };
}

nn::Pending ContextGroup::shift(const at::Tensor& tensor, const program::CallId& id, Over ranks) {
  if (over(ranks).size() == 1) return [tensor] { return tensor; };
  const at::Tensor came = at::empty_like(tensor);
  return pending(over(ranks).shift(tensor, came, call(id)), "shift", came);
}

nn::Pending ContextGroup::shift_back(const at::Tensor& tensor, const program::CallId& id, Over ranks) {
  if (over(ranks).size() == 1) return [tensor] { return tensor; };
  const at::Tensor came = at::empty_like(tensor);
  return pending(over(ranks).shift_back(tensor, came, call(id)), "shift", came);
}

nn::Pending ContextGroup::gather(const at::Tensor& own, const program::CallId& id, Over ranks) {
  const int size = over(ranks).size();
  if (size == 1) return [whole = own.unsqueeze(0)] { return whole; };
  const at::Tensor whole = at::empty(shape_of({size}, own.sizes()), own.options());
  return pending(over(ranks).all_gather(own, whole, call(id)), "all_gather", whole);
}

nn::Pending ContextGroup::reduce_scatter(const at::Tensor& whole, const program::CallId& id, Over ranks) {
  if (over(ranks).size() == 1) return [own = whole.squeeze(0)] { return own; };
  const at::Tensor own = at::empty(whole.sizes().slice(1), whole.options());
  return pending(over(ranks).reduce_scatter(whole, own, call(id)), "reduce_scatter", own);
}

nn::Pending ContextGroup::exchange(const at::Tensor& parts, const program::CallId& id, Over ranks) {
  if (over(ranks).size() == 1) return [parts] { return parts; };
  const at::Tensor came = at::empty_like(parts);
  return pending(over(ranks).all_to_all(parts, came, call(id)), "all_to_all", came);
}

void ContextGroup::all_reduce(const at::Tensor& tensor, const program::CallId& id) {
  if (size() == 1) return;
  comm::CallOptions options = call(id);
  options.blocking = true;
  pending(communicator_.all_reduce(tensor, options), "all_reduce", tensor)();
}

}  // namespace lockstep::parallel
