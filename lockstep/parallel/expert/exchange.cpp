#include "lockstep/parallel/expert/exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/branch.h"
#include "lockstep/nn/device_routing.h"
#include "lockstep/nn/upload.h"
#include "lockstep/parallel/expert/sequence_order.h"
#include "lockstep/parallel/expert/slots.h"

namespace lockstep::parallel {
namespace {

using nn::ExchangePhase;

int64_t sum_of(const std::vector<int64_t>& counts, mesh::Range range) {
  return std::accumulate(counts.begin() + range.begin, counts.begin() + range.end, int64_t{0});
}

at::Tensor index_tensor(const std::vector<int64_t>& places, at::Device device) {
  return nn::upload(std::span<const int64_t>(places), device);
}

// The assignments of a round, as its rank sends them.
nn::ExpertExchange::Round round_of(const Assigned& whole, const std::vector<mesh::Range>& ranges) {
  nn::ExpertExchange::Round round;
  const Assigned own = taken(whole, ranges, &round.places);
  round.own = routing_of(own, own.tokens);
  return round;
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

struct ShardedExchange::Routes : nn::ExpertExchange::Plan {
  std::vector<int64_t> to_ep;     // own assignments, by ep rank
  std::vector<int64_t> sent;      // rows to each rank
  std::vector<int64_t> received;  // and from each
  std::vector<int64_t> order{};   // by_expert; empty: they come in that order
  std::vector<int64_t> slots{};   // of a message of slots: that of each assignment
  int64_t all_slots = 0;          // its rows; 0: the message is the assignments
  std::shared_ptr<const nn::DeviceRouting> on_device{};  // who knows the slots where the host does not
  at::Tensor index(const at::Tensor& rows) const { return index_tensor(order, rows.device()); }
};

ShardedExchange::ShardedExchange(ExpertGroup* experts, TensorGroup* tensor, ContextGroup* context, program::CallId block, std::string part)
    : experts_(experts && experts->size() > 1 ? experts : nullptr),
      tensor_(tensor && tensor->size() > 1 ? tensor : nullptr),
      context_(context && context->size() > 1 ? context : nullptr),
      block_(block),
      part_(std::move(part)) {}

program::CallId ShardedExchange::call(const char* what, ExchangePhase phase) const {
  const bool forward = phase == ExchangePhase::kForward;
  return block_.of_part(cat(part_, ".", what)).with(forward ? program::CallPhase::kForward : program::CallPhase::kBackward);
}

mesh::Range ShardedExchange::own_rows(int64_t rows) const {
  return tensor_ ? tensor_->local_rows(rows) : ExpertExchange::own_rows(rows);
}

// The part that the rank's table has of a bias over etp.
mesh::Range ShardedExchange::own_columns(int64_t width) const {
  return experts_ ? mesh::shard_range(width, experts_->etp(), experts_->etp_rank()) : ExpertExchange::own_columns(width);
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

at::Tensor ShardedExchange::gather_scores(const at::Tensor& own, const nn::Sequences& sequences) {
  const program::CallId id = call("scores", ExchangePhase::kForward);
  at::Tensor here = tensor_ ? tensor_->gather_rows(own, sequences.count * sequences.length, id)() : own;
  if (!context_) return here;
  LOCKSTEP_CHECK(sequences.places != nullptr, part_, ": parts of sequences on ", context_->size(), " ranks without the places of their tokens");
  nn::Pending coming = context_->gather(here, id);
  here.reset();
  const at::Tensor parts = std::exchange(coming, {})();
  return in_order_of_sequences(parts, *sequences.places);
}

std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::plan(const nn::Routing& own) {
  if (!experts_) return ExpertExchange::plan(own);
  if (experts_->options().slots > 0) return plan_of_slots(own);
  const std::vector<Assigned> sources = gather(own);
  const int64_t limit = experts_->options().limit, most = std::ranges::max(received_by(sources, experts_->ep()));
  if (limit == 0 || most <= limit) return whole_plan(sources);
  return plan_in_rounds(sources, (most + limit - 1) / limit);
}

// What all ranks send; of this one, and where tokens are spread of all, which rows too.
std::vector<Assigned> ShardedExchange::gather(const nn::Routing& own) {
  std::vector<int64_t> mine = own.counts;
  if (experts_->spreads_tokens()) mine.push_back(own.own_rows());
  std::vector<Assigned> sources;
  for (std::vector<int64_t>& counts : experts_->gather_counts(mine, call("counts", ExchangePhase::kForward))) {
    Assigned& source = sources.emplace_back();
    source.counts = std::move(counts);
    if (!experts_->spreads_tokens()) continue;
    source.tokens = source.counts.back();
    source.counts.pop_back();
  }
  if (experts_->spreads_tokens()) gather_tokens(own, sources);
  Assigned& self = sources[static_cast<size_t>(experts_->rank())];
  self.rows = own.rows;
  self.weights = own.weights;
  self.tokens = own.own_rows();
  return sources;
}

std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::whole_plan(const std::vector<Assigned>& sources) const {
  if (experts_->spreads_tokens()) return token_plan(sources);
  return routes(sources);
}

std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::plan_in_rounds(const std::vector<Assigned>& sources, int64_t rounds) const {
  auto plan = std::make_unique<Plan>();
  plan->told_rounds = experts_->rank() == 0 ? rounds - 1 : 0;
  const auto self = static_cast<size_t>(experts_->rank());
  for (int64_t round = 0; round < rounds; ++round) {
    const std::vector<std::vector<mesh::Range>> ranges = cut_received(sources, experts_->ep(), rounds, round);
    std::vector<Assigned> some;
    for (size_t source = 0; source < sources.size(); ++source) some.push_back(taken(sources[source], ranges[source]));
    plan->rounds.push_back(round_of(sources[self], ranges[self]));
    plan->rounds.back().plan = whole_plan(some);
  }
  return plan;
}

// As if every rank had as many rows for every expert as a message has room for.
std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::plan_of_slots(const nn::Routing& own) const {
  if (own.on_device) return device_plan(own.on_device);
  const int64_t room = slots(), experts = std::ssize(own.counts);
  std::unique_ptr<Routes> plan = routes(std::vector<Assigned>(
      static_cast<size_t>(experts_->size()),
      Assigned{.counts = std::vector<int64_t>(own.counts.size(), room), .rows = {}, .weights = {}, .tokens = 0}));
  plan->all_slots = room * experts;
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t count = own.counts[static_cast<size_t>(expert)];
    LOCKSTEP_CHECK(count <= room, part_, ": ", count, " rows for expert ", expert, ", room for ", room);
    for (int64_t i = 0; i < count; ++i) plan->slots.push_back(expert * room + i);
  }
  return plan;
}

// The same numbers from sizes alone: every rank sends as many rows to every other.
std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::device_plan(std::shared_ptr<const nn::DeviceRouting> routing) const {
  const int64_t room = slots(), here = experts_->experts_here(routing->experts).size();
  LOCKSTEP_CHECK_EQ(routing->room, room, part_, ": rows for each expert in a message");
  const auto ranks = static_cast<size_t>(experts_->size());
  auto plan = std::make_unique<Routes>();
  plan->here.assign(static_cast<size_t>(here), room * experts_->size());
  plan->to_ep.assign(static_cast<size_t>(experts_->ep()), room * here);
  plan->sent.assign(ranks, room * here);
  plan->received = plan->sent;
  plan->all_slots = room * routing->experts;
  plan->on_device = std::move(routing);
  return plan;
}

std::unique_ptr<ShardedExchange::Routes> ShardedExchange::routes(const std::vector<Assigned>& sources) const {
  const std::vector<int64_t>& counts = sources[static_cast<size_t>(experts_->rank())].counts;
  const auto experts = static_cast<int64_t>(counts.size());
  const mesh::Range local = experts_->experts_here(experts);
  auto routes = std::make_unique<Routes>();
  std::vector<std::vector<int64_t>> come;  // of each source, by local expert
  for (const Assigned& source : sources) {
    come.emplace_back(source.counts.begin() + local.begin, source.counts.begin() + local.end);
    routes->received.push_back(sum_of(source.counts, local));
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
  at::Tensor rows = sorted;
  if (routes.on_device) {
    rows = into_slots(sorted, *routes.on_device);
  } else if (routes.all_slots > 0) {
    rows = at::zeros({routes.all_slots, sorted.size(1)}, sorted.options());
    rows.index_copy_(0, index_tensor(routes.slots, sorted.device()), sorted);
  }
  if (experts_->etp() > 1) rows = repeated(rows, routes.to_ep, experts_->etp());
  return [arrived = experts_->exchange(rows, routes.sent, routes.received, call("dispatch", phase)), &routes] {
    const at::Tensor here = arrived();
    if (routes.on_device) return swap_blocks(here, std::ssize(routes.received), std::ssize(routes.here));
    return routes.order.empty() ? here : here.index_select(0, routes.index(here));
  };
}

nn::Pending ShardedExchange::combine(const at::Tensor& here, const Plan& plan, ExchangePhase phase) {
  if (!experts_) return ExpertExchange::combine(here, plan, phase);
  const auto& routes = dynamic_cast<const Routes&>(plan);
  at::Tensor back = here;
  if (routes.on_device) {
    back = swap_blocks(here, std::ssize(routes.here), std::ssize(routes.received));
  } else if (!routes.order.empty()) {
    back = at::empty_like(here);
    back.index_copy_(0, routes.index(here), here);
  }
  return [arrived = experts_->exchange(back, routes.received, routes.sent, call("combine", phase)), &routes, etp = experts_->etp()] {
    at::Tensor rows = arrived();
    if (etp > 1) rows = summed(rows, routes.to_ep, etp);
    if (routes.on_device) return out_of_slots(rows, *routes.on_device);
    return routes.all_slots == 0 ? rows : rows.index_select(0, index_tensor(routes.slots, rows.device()));
  };
}

}  // namespace lockstep::parallel
