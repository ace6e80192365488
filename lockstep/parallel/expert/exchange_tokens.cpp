// Tokens that travel as one row for all their experts: to all ranks, or by nodes. Weighted and summed where the experts are, they come back
// as one row too.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/nn/permute.h"
#include "lockstep/parallel/expert/exchange.h"

namespace lockstep::parallel {

using nn::ExchangePhase;

namespace {

int64_t sum_of(const std::vector<int64_t>& counts) { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }

}  // namespace

struct ShardedExchange::Tokens : nn::ExpertExchange::Plan {
  int64_t own_rows = 0, most_rows = 1;                // T, and the most of any rank
  int64_t assignments = 0, most_assignments = 1;      // N, likewise
  std::vector<int64_t> slots{};                       // [R] of a rank's assignments in [G, most_assignments]
  Hop over_nodes{}, inside_node{};                    // of a hierarchical dispatcher
};

void ShardedExchange::gather_tokens(const nn::Routing& own, std::vector<Assigned>& sources) {
  int64_t most = 1;
  for (const Assigned& source : sources) most = std::max(most, sum_of(source.counts));
  std::vector<double> mine;
  for (size_t i = 0; i < own.rows.size(); ++i) {
    mine.push_back(static_cast<double>(own.rows[i]));
    mine.push_back(static_cast<double>(own.weights[i]));
  }
  const at::Tensor all = experts_->gather_numbers(mine, 2 * most, call("tokens", ExchangePhase::kForward));
  const double* of_rank = all.const_data_ptr<double>();
  for (Assigned& source : sources) {
    const int64_t count = sum_of(source.counts);
    for (int64_t i = 0; i < count; ++i) {
      source.rows.push_back(static_cast<int64_t>(of_rank[2 * i]));
      source.weights.push_back(static_cast<float>(of_rank[2 * i + 1]));
    }
    of_rank += 2 * most;
  }
}

std::unique_ptr<nn::ExpertExchange::Plan> ShardedExchange::token_plan(const std::vector<Assigned>& sources) const {
  const int rank = experts_->rank();
  const Assigned& self = sources[static_cast<size_t>(rank)];
  auto plan = std::make_unique<Tokens>();
  plan->own_rows = self.tokens;
  plan->assignments = sum_of(self.counts);
  for (const Assigned& source : sources) {
    plan->most_rows = std::max(plan->most_rows, source.tokens);
    plan->most_assignments = std::max(plan->most_assignments, sum_of(source.counts));
  }
  const mesh::Range here = experts_->experts_here(std::ssize(self.counts));
  nn::Routing routing;
  if (experts_->options().dispatcher == config::Dispatcher::kAllGather) {
    const auto place = [&](size_t source, int64_t row) { return static_cast<int64_t>(source) * plan->most_rows + row; };
    routing = routing_here(sources, here, plan->most_rows * experts_->size(), place, plan->most_assignments, plan->slots);
  } else {
    NodeHops hops = hops_over_nodes(sources, experts_->ep(), experts_->options().node->size(), rank);
    const auto place = [&](size_t source, int64_t row) { return hops.place[source][static_cast<size_t>(row)]; };
    routing = routing_here(sources, here, hops.rows, place, plan->most_assignments, plan->slots);
    plan->over_nodes = std::move(hops.over_nodes);
    plan->inside_node = std::move(hops.inside_node);
  }
  plan->here = routing.counts;
  plan->tokens = std::make_unique<const nn::Routing>(std::move(routing));
  return plan;
}

nn::Pending ShardedExchange::spread(const at::Tensor& own, const Plan& plan, ExchangePhase phase) {
  const auto& tokens = dynamic_cast<const Tokens&>(plan);
  LOCKSTEP_CHECK_EQ(own.size(0), tokens.own_rows, part_, ": own rows");
  if (tokens.over_nodes.sent.empty()) return experts_->gather_rows(own, tokens.most_rows, call("dispatch", phase));
  const Hop& first = tokens.over_nodes;
  return [this, &tokens, inside = call("dispatch.node", phase),
          arrived = experts_->exchange(nn::permute_rows(own, first.routing), first.sent, first.received, call("dispatch", phase),
                                       ExpertGroup::Over::kNodes)] {
    const Hop& second = tokens.inside_node;
    return experts_->exchange(nn::permute_rows(arrived(), second.routing), second.sent, second.received, inside, ExpertGroup::Over::kNode)();
  };
}

nn::Pending ShardedExchange::collect(const at::Tensor& sums, const Plan& plan, ExchangePhase phase) {
  const auto& tokens = dynamic_cast<const Tokens&>(plan);
  if (tokens.over_nodes.sent.empty())
    return [own_rows = tokens.own_rows, arrived = experts_->scatter_rows(sums, call("combine", phase))] {
      return arrived().narrow(0, 0, own_rows);
    };
  const Hop &first = tokens.over_nodes, &second = tokens.inside_node;
  const at::Tensor inside =
      experts_->exchange(sums, second.received, second.sent, call("combine.node", phase), ExpertGroup::Over::kNode)();
  const at::Tensor through = nn::sum_rows(inside, second.routing, /*weighted=*/false);
  return [&first, arrived = experts_->exchange(through, first.received, first.sent, call("combine", phase), ExpertGroup::Over::kNodes)] {
    return nn::sum_rows(arrived(), first.routing, /*weighted=*/false);
  };
}

at::Tensor ShardedExchange::return_weights(const at::Tensor& here, const Plan& plan) {
  const auto& tokens = dynamic_cast<const Tokens&>(plan);
  const at::Tensor all = at::zeros({tokens.most_assignments * experts_->size(), 1}, here.options());
  const at::Tensor index = at::empty({std::ssize(tokens.slots)}, at::TensorOptions(at::kLong));
  std::copy(tokens.slots.begin(), tokens.slots.end(), index.mutable_data_ptr<int64_t>());
  all.view({-1}).index_copy_(0, index.to(here.device()), here);
  return experts_->scatter_rows(all, call("weights", ExchangePhase::kBackward))().view({-1}).narrow(0, 0, tokens.assignments);
}

}  // namespace lockstep::parallel
