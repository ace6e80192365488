// Experts as a kind of branch (Shazeer et al. 2017; Lepikhin et al., GShard, 2021): its steps, and how many rows of a microbatch a rank
// has to do with.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/arch/branch_kind.h"

namespace lockstep::arch {

// Of one microbatch on one of G = ep x etp ranks.
struct ExpertRows {
  ExpertRows(const ModelConfig& model, const CostInput& input);
  int64_t here = 0;      // rows of the microbatch on this rank of cp
  int64_t own = 0;       // T: of them those that this rank routes, padding included
  int64_t sent = 0;      // N: assignments of own rows to experts, at most; with slots the dropped ones too, which a GPU holds as zeros
  int64_t balanced = 0;  // rows that leave this rank, and that come to it, if all experts get as many; each of etp ranks gets a copy
  int64_t received = 0;  // R: rows that come to this rank, at most: those of all G ranks
  int64_t limit = 0;     // moe.imbalance_limit in rows, which `received` is at most then; 0: none
  int64_t slots = 0;     // moe.static_buffers: rows for each expert in a rank's messages, those that stay empty included; 0: no such
  // A dispatcher that sends tokens, one row for all their experts: rows that come to this rank at most, and on their way to the other
  // ranks of its node. An expert lies on one node, or on more where its etp ranks do; a token's on as many times that as it has experts,
  // or on all nodes.
  int64_t tokens = 0;
  int64_t to_node = 0;
  int64_t nodes_of_expert = 0, nodes_of_token = 0;  // at most
};
// Rows travel by token and are weighted and summed where the experts are; otherwise each of a token's rows by itself.
bool sends_tokens(const CostInput& input);

// Tokens of a sequence of `seq_len` that an expert takes: ceil(factor k S / E), at most all.
int64_t expert_capacity(const ExpertSizes& experts, double factor, int64_t seq_len);

// Where its rows go, or how much they count, depends on other rows of a sequence too: the ranks of tp, and of cp, tell each other all scores.
bool routes_by_sequence(const ExpertSizes& experts, const config::MoeSection& moe);

// The linears of the shared expert.
inline constexpr std::string_view kSharedFirst = "shared.gate_up", kSharedLast = "shared.down";

std::unique_ptr<WholeBranch> new_experts_branch(LayerBuilder& b, const Branch& branch);

}  // namespace lockstep::arch
