// The way of one layer's tokens from rank to rank and back (GShard, Lepikhin et al. 2021): of one microbatch, forward, as predicted, if
// every expert gets as many. What travels is what the layer's description says (arch/expert_branch.h) and `show traffic` counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/program/layout.h"
#include "lockstep/program/ledger.h"

namespace lockstep::program {

// A call that carries rows among the ranks that share the experts of a layer, or among some of them. Ranks are members of TokenRoutes::ranks.
struct TokenHop {
  std::string part{};  // "experts.dispatch", "experts.combine.node"
  Collective collective = Collective::kAllToAll;
  std::string over{};             // name of the group
  bool back = false;              // of outputs on their way back
  bool decided_by_tokens = false;  // a step's own numbers differ
  int64_t rows = 0;  // from each member of a group to each, itself included; padding included
  int members = 0;   // of a group
  int stride = 1;    // from a member to the next
  bool reaches(int from, int to) const { return from % stride == to % stride && from / (stride * members) == to / (stride * members); }
  int64_t sent(int from, int to) const { return reaches(from, to) ? rows : 0; }
  int64_t of_a_rank() const { return rows * members; }  // that leave it, and that come to it
};

struct TokenRoutes {
  std::vector<int> ranks{};     // the group ep x etp in its order; empty where one rank has all experts
  int64_t own = 0;              // T: rows that each rank routes, padding included
  int64_t assignments = 0;      // of them to experts, for every rank of etp one: with slots at most
  int64_t slots = 0;            // static_buffers: rows for each expert in a rank's messages
  int64_t at_experts = 0;       // rows that the experts of a rank take
  int64_t experts_of_rank = 0;
  std::vector<TokenHop> hops{};  // in the order in which they are made
};

// Of the group that `rank` is in. Nothing for a model without experts, and for a group of one.
TokenRoutes token_routes(const Layout& layout, int rank);

// Experts of a member: [begin, end).
mesh::Range experts_of(const Layout& layout, const TokenRoutes& routes, int member);

// More ranks than these are not drawn, and not listed one by one.
inline constexpr int kDrawnRanks = 8;

// A column for each of the first ranks, what they send from above down. Empty where token_routes() is.
std::string draw_tokens(const Layout& layout, int rank);

}  // namespace lockstep::program
