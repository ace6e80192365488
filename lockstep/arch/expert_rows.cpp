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
  return moe.balance == config::Balance::kAux || moe.capacity_factor || experts.router == config::Router::kExpertChoice;
}

ExpertRows::ExpertRows(const ModelConfig& model, const CostInput& input) {
  const ExpertSizes& experts = model.experts;
  const ExpertShard& shard = input.tensor.experts;
  const int64_t tokens = input.batch * input.seq_len, ranks = int64_t{shard.ep} * shard.etp, here = experts.count / shard.ep;
  own = mesh::padded_part(tokens, input.tensor.size);
  const bool chosen = experts.router == config::Router::kExpertChoice;  // by experts
  sent = balanced = own * experts.per_token;
  received = ranks * own * std::min(experts.per_token, here);
  if (chosen || input.moe.capacity_factor) {
    const int64_t capacity = expert_capacity(experts, input.moe.capacity_factor.value_or(1), input.seq_len);
    // Own rows may begin and end within a sequence.
    const int64_t sequences = input.tensor.size == 1 ? input.batch : std::min(input.batch, divided_up(own - 1, input.seq_len) + 1);
    const int64_t of_expert = std::min(own, sequences * capacity);  // own rows that one expert takes, at most
    const int64_t mean = divided_up(own * experts.count * capacity, input.seq_len);
    sent = chosen ? experts.count * of_expert : std::min(sent, experts.count * of_expert);
    balanced = chosen ? mean : std::min(balanced, mean);
    received = chosen ? ranks * here * of_expert : std::min(received, ranks * here * of_expert);
  }
  balanced *= shard.etp;
  if (ranks == 1) received = sent;
}

}  // namespace lockstep::arch
