#include <algorithm>
#include <cmath>

#include "lockstep/arch/expert_branch.h"

namespace lockstep::arch {
namespace {

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

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
  const int64_t tokens_here = input.batch * input.seq_len, ranks = int64_t{shard.ep} * shard.etp, here = experts.count / shard.ep;
  own = mesh::padded_part(tokens_here, input.tensor.size);
  const bool chosen = experts.router == config::Router::kExpertChoice;  // by experts
  sent = balanced = own * experts.per_token;
  received = ranks * own * std::min(experts.per_token, here);
  int64_t of_expert = own;  // own rows that one expert takes, at most
  if (chosen || input.moe.capacity_factor) {
    const int64_t capacity = expert_capacity(experts, input.moe.capacity_factor.value_or(1), input.seq_len);
    // Own rows may begin and end within a sequence. By the load of the last step an expert keeps a part of what comes, however much
    // that is: as if each row were a sequence.
    const bool bounded = chosen || input.moe.scope == config::MoeScope::kSequence;
    const int64_t begun = input.tensor.size == 1 ? input.batch : std::min(input.batch, divided_up(own - 1, input.seq_len) + 1);
    const int64_t sequences = bounded ? begun : own;
    of_expert = std::min(own, sequences * capacity);
    const int64_t mean = divided_up(own * experts.count * capacity, input.seq_len);
    sent = chosen ? experts.count * of_expert : std::min(sent, experts.count * of_expert);
    balanced = chosen ? mean : std::min(balanced, mean);
    received = chosen ? ranks * here * of_expert : std::min(received, ranks * here * of_expert);
  }
  balanced *= shard.etp;
  if (ranks == 1) {
    received = sent;
    return;
  }
  if (input.moe.static_buffers) {
    slots = of_expert;
    received = ranks * here * slots;
    balanced = received;
  }
  if (input.moe.imbalance_limit) {
    limit = static_cast<int64_t>(std::ceil(*input.moe.imbalance_limit * static_cast<double>(balanced)));
    received = std::min(received, limit);
  }
  if (!sends_tokens(input)) return;
  const int64_t nodes = input.dispatcher == config::Dispatcher::kAllGather ? 1 : ranks / input.node_ranks;
  nodes_of_token = chosen ? nodes : std::min(nodes, experts.per_token);
  tokens = ranks * own;
  to_node = nodes * own;
}

}  // namespace lockstep::arch
