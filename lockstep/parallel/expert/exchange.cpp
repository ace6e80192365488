#include "lockstep/parallel/expert/exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::parallel {
namespace {

using nn::ExchangePhase;

int64_t sum_of(const std::vector<int64_t>& counts, mesh::Range range) {
  return std::accumulate(counts.begin() + range.begin, counts.begin() + range.end, int64_t{0});
}

at::Tensor index_tensor(const std::vector<int64_t>& places, at::Device device) {
  const at::Tensor index = at::empty({static_cast<int64_t>(places.size())}, at::TensorOptions(at::kLong));
  std::copy(places.begin(), places.end(), index.mutable_data_ptr<int64_t>());
  return index.to(device);
}

// For each ep rank its rows once per rank of etp. sent: rows to each ep rank.
at::Tensor repeated(const at::Tensor& sorted, const std::vector<int64_t>& sent, int etp) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t rows : sent) {
    for (int copy = 0; copy < etp; ++copy) parts.push_back(sorted.narrow(0, begin, rows));
    begin += rows;
  }
  return at::cat(parts, 0);
}

// The inverse: the sum of the copies, in rank order; a bf16 sum is rounded once.
at::Tensor summed(const at::Tensor& copies, const std::vector<int64_t>& sent, int etp) {
  const int64_t rows = copies.size(0) / etp;
  const at::ScalarType wide = copies.scalar_type() == at::kBFloat16 ? at::kFloat : copies.scalar_type();
  const at::Tensor sums = at::empty({rows, copies.size(1)}, copies.options());
  int64_t begin = 0;
  for (const int64_t count : sent) {
    if (count == 0) continue;
    const at::Tensor sum = copies.narrow(0, begin * etp, count).to(wide);
    for (int copy = 1; copy < etp; ++copy) sum.add_(copies.narrow(0, begin * etp + copy * count, count));
    sums.narrow(0, begin, count).copy_(sum);
    begin += count;
  }
  return sums;
}

}  // namespace

std::vector<int64_t> by_expert(const std::vector<std::vector<int64_t>>& counts) {
  const size_t experts = counts.empty() ? 0 : counts.front().size();
  std::vector<int64_t> next;  // of each source, of the expert at hand: where its rows begin
  int64_t all = 0;
  for (const std::vector<int64_t>& source : counts) {
    next.push_back(all);
    all = std::accumulate(source.begin(), source.end(), all);
  }
  std::vector<int64_t> places;
  places.reserve(static_cast<size_t>(all));
  for (size_t expert = 0; expert < experts; ++expert)
    for (size_t source = 0; source < counts.size(); ++source)
      for (int64_t row = 0; row < counts[source][expert]; ++row) places.push_back(next[source]++);
  return places;
}

struct ShardedExchange::Routes : nn::ExpertExchange::Plan {
  std::vector<int64_t> to_ep;     // own assignments, by ep rank
  std::vector<int64_t> sent;      // rows to each rank
  std::vector<int64_t> received;  // and from each
  std::vector<int64_t> order{};   // by_expert; empty: they come in that order
  at::Tensor index(const at::Tensor& rows) const { return index_tensor(order, rows.device()); }
};

ShardedExchange::ShardedExchange(ExpertGroup* experts, TensorGroup* tensor, program::CallId block, std::string part)
    : experts_(experts && experts->size() > 1 ? experts : nullptr),
      tensor_(tensor && tensor->size() > 1 ? tensor : nullptr),
      block_(block),
      part_(std::move(part)) {}

program::CallId ShardedExchange::call(const char* what, ExchangePhase phase) const {
  const bool forward = phase == ExchangePhase::kForward;
  return block_.of_part(cat(part_, ".", what)).with(forward ? program::CallPhase::kForward : program::CallPhase::kBackward);
}

mesh::Range ShardedExchange::own_rows(int64_t rows) const {
  return tensor_ ? tensor_->local_rows(rows) : ExpertExchange::own_rows(rows);
}

at::Tensor ShardedExchange::take_own(const at::Tensor& x, int64_t rows) {
  if (!tensor_) return ExpertExchange::take_own(x, rows);
  const mesh::Range own = own_rows(rows);
  const at::Tensor flat = nn::flatten_rows(x);
  LOCKSTEP_CHECK_EQ(flat.size(0), tensor_->sequence_parallel() ? own.size() : rows, part_, ": of ", rows, " rows");
  return tensor_->sequence_parallel() ? flat : flat.narrow(0, own.begin, own.size());
}

nn::Pending ShardedExchange::give_all(const at::Tensor& own, const at::Tensor& like, int64_t rows, ExchangePhase phase) {
  if (!tensor_ || tensor_->sequence_parallel()) return ExpertExchange::give_all(own, like, rows, phase);
  // What follows a forward pass needs the rows; behind a backward one come the weight gradients.
  const auto when = phase == ExchangePhase::kForward ? TensorGroup::When::kNow : TensorGroup::When::kBeside;
  return [all = tensor_->gather_rows(own, rows, call("rows", phase), when), like] { return nn::unflatten_rows(all(), like); };
}

at::Tensor ShardedExchange::gather_scores(const at::Tensor& own, int64_t rows) {
  return tensor_ ? tensor_->gather_rows(own, rows, call("scores", ExchangePhase::kForward))() : own;
}

std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::plan(const std::vector<int64_t>& counts) {
  if (!experts_) return ExpertExchange::plan(counts);
  const auto experts = static_cast<int64_t>(counts.size());
  const mesh::Range local = experts_->experts_here(experts);
  auto routes = std::make_unique<Routes>();
  std::vector<std::vector<int64_t>> come;  // of each source, by local expert
  for (const std::vector<int64_t>& of_rank : experts_->gather_counts(counts, call("counts", ExchangePhase::kForward))) {
    come.emplace_back(of_rank.begin() + local.begin, of_rank.begin() + local.end);
    routes->received.push_back(sum_of(of_rank, local));
  }
  for (int rank = 0; rank < experts_->ep(); ++rank) {
    routes->to_ep.push_back(sum_of(counts, experts_->experts_of(experts, rank)));
    routes->sent.insert(routes->sent.end(), static_cast<size_t>(experts_->etp()), routes->to_ep.back());
  }
  routes->here.assign(static_cast<size_t>(local.size()), 0);
  for (const std::vector<int64_t>& source : come)
    for (size_t expert = 0; expert < source.size(); ++expert) routes->here[expert] += source[expert];
  if (local.size() > 1) routes->order = by_expert(come);
  return routes;
}

nn::Pending ShardedExchange::dispatch(const at::Tensor& sorted, const Plan& plan, ExchangePhase phase) {
  if (!experts_) return ExpertExchange::dispatch(sorted, plan, phase);
  const auto& routes = dynamic_cast<const Routes&>(plan);
  const at::Tensor rows = experts_->etp() == 1 ? sorted : repeated(sorted, routes.to_ep, experts_->etp());
  return [arrived = experts_->exchange(rows, routes.sent, routes.received, call("dispatch", phase)), &routes] {
    const at::Tensor here = arrived();
    return routes.order.empty() ? here : here.index_select(0, routes.index(here));
  };
}

nn::Pending ShardedExchange::combine(const at::Tensor& here, const Plan& plan, ExchangePhase phase) {
  if (!experts_) return ExpertExchange::combine(here, plan, phase);
  const auto& routes = dynamic_cast<const Routes&>(plan);
  at::Tensor back = here;
  if (!routes.order.empty()) {
    back = at::empty_like(here);
    back.index_copy_(0, routes.index(here), here);
  }
  return [arrived = experts_->exchange(back, routes.received, routes.sent, call("combine", phase)), &routes, etp = experts_->etp()] {
    const at::Tensor rows = arrived();
    return etp == 1 ? rows : summed(rows, routes.to_ep, etp);
  };
}

}  // namespace lockstep::parallel
