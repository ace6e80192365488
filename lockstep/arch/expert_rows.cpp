#include <algorithm>
#include <cmath>

#include "lockstep/arch/expert_branch.h"
#include "lockstep/base/checked.h"

namespace lockstep::arch {
namespace {

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

__extension__ using Wide = __int128;

// a x b / by, rounded up; the product may need more than 64 bits.
int64_t share_rounded_up(int64_t a, int64_t b, int64_t by) { return static_cast<int64_t>((static_cast<Wide>(a) * b + by - 1) / by); }

// Of an expert's etp ranks, which are neighbours: the most nodes that they lie on.
int64_t most_nodes(const ExpertShard& shard, int64_t node) {
  int64_t most = 1;
  for (int64_t first = 0; first < int64_t{shard.ep} * shard.etp; first += shard.etp)
    most = std::max(most, (first + shard.etp - 1) / node - first / node + 1);
  return most;
}

}  // namespace

int64_t expert_capacity(const ExpertSizes& experts, double factor, int64_t seq_len) {
  // Rounded as nn/routing.cpp rounds it.
  const double tokens = std::ceil(factor * static_cast<double>(experts.per_token * seq_len) / static_cast<double>(experts.count));
  return tokens < static_cast<double>(seq_len) ? static_cast<int64_t>(tokens) : seq_len;
}

bool routes_by_sequence(const ExpertSizes& experts, const config::MoeSection& moe) {
  const bool by_sequence = moe.scope == config::MoeScope::kSequence;
  return (by_sequence && moe.balance == config::Balance::kAux) || moe.capacity_factor || experts.router == config::Router::kExpertChoice;
}

bool sends_tokens(const CostInput& input) {
  return input.dispatcher != config::Dispatcher::kAllToAll && input.tensor.experts.ep * input.tensor.experts.etp > 1;
}

ExpertRows::ExpertRows(const ModelConfig& model, const CostInput& input) {
  const ExpertSizes& experts = model.experts;
  const ExpertShard& shard = input.tensor.experts;
  const int64_t length = input.context.tokens_here(input.seq_len), ranks = int64_t{shard.ep} * shard.etp, experts_here = experts.count / shard.ep;
  here = input.batch * length;
  own = mesh::padded_part(here, input.tensor.size);
  const bool chosen = experts.router == config::Router::kExpertChoice;  // by experts
  sent = balanced = own * experts.per_token;
  received = ranks * own * std::min(experts.per_token, experts_here);
  int64_t of_expert = own;  // own rows that one expert takes, at most
  if (chosen || input.moe.capacity_factor) {
    const int64_t capacity = expert_capacity(experts, input.moe.capacity_factor.value_or(1), input.seq_len);
    // Own rows may begin and end within a sequence. By the load of the last step an expert keeps a part of what comes, however much
    // that is: as if each row were a sequence.
    const bool bounded = chosen || input.moe.scope == config::MoeScope::kSequence;
    const int64_t begun = input.tensor.size == 1 ? input.batch : std::min(input.batch, divided_up(own - 1, length) + 1);
    const int64_t sequences = bounded ? begun : own;
    of_expert = std::min(own, saturating_mul(sequences, capacity));
    const int64_t mean = share_rounded_up(own * experts.count, capacity, input.seq_len);
    const int64_t most_sent = saturating_mul(experts.count, of_expert), most_here = saturating_mul(ranks * experts_here, of_expert);
    sent = chosen ? most_sent : std::min(sent, most_sent);
    balanced = chosen ? mean : std::min(balanced, mean);
    received = chosen ? most_here : std::min(received, most_here);
  }
  balanced *= shard.etp;
  if (ranks == 1) {
    received = sent;
    return;
  }
  if (input.moe.static_buffers) {
    slots = of_expert;
    if (!chosen) sent = own * experts.per_token;  // dropped ones are among them where a GPU routes (nn/device_routing.h)
    received = ranks * experts_here * slots;
    balanced = received;
  }
  if (input.moe.imbalance_limit) {
    const double bound = std::ceil(*input.moe.imbalance_limit * static_cast<double>(balanced));
    limit = bound >= static_cast<double>(received) ? received : static_cast<int64_t>(bound);
    received = limit;
  }
  if (!sends_tokens(input)) return;
  const bool by_node = input.dispatcher == config::Dispatcher::kHierarchical;
  const int64_t nodes = by_node ? ranks / input.node_ranks : 1;
  nodes_of_expert = by_node ? most_nodes(shard, input.node_ranks) : 1;
  nodes_of_token = chosen ? nodes : std::min(nodes, experts.per_token * nodes_of_expert);
  tokens = ranks * own;
  to_node = nodes * own;
}

}  // namespace lockstep::arch
