// How sums are made: what over ranks by which call, in which order, and what a rank adds up by itself. Everything that sums asks
// here; another policy (the same bits in every layout, say) gives other answers.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/program/layout.h"
#include "lockstep/program/ledger.h"

namespace lockstep::program {

enum class SumOrder : uint8_t {
  kNone,   // nothing is summed
  kRanks,  // rank 0, 1, ..., n - 1
  kRing,   // chunk c: rank c + 1, c + 2, ..., c (ledger.h)
  kTree,   // by twos
  kList,   // as the actions of a list come to it: every microbatch adds to the fp32 gradient
  kIndex,  // microbatch 0, 1, ...; of a norm the parameters in the order of the table: one fp64 chain
};
enum class Summed : uint8_t {
  kGradients,         // over the ranks of other tokens
  kServerGradients,   // the same, for a parameter server alone
  kGradientCopies,    // shards of them over the ranks that hold the same one
  kTiedGradients,     // over the two stages that hold a unit
  kPartialGradients,  // over tp, at the end of the step
  kActivations,       // and their gradients, inside sharded layers
  kLoss,
  kTokens,
  kNorm,              // squares
};

struct Summation {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  int64_t element_size = 4;  // on the wire
  SumOrder order = SumOrder::kNone;
};
// Over ranks. Of gradients of that group: with several shards a rank gets the sum of its own part; where they travel in bf16, as parts that
// it adds up in fp32. Not of kActivations, which are summed as their size says (prompt_algorithm).
Summation sum_over_ranks(const Layout& layout, Summed what, arch::ParameterGroup of = arch::ParameterGroup::kDense);
// Of a call, by how it is made.
SumOrder order_of(Collective collective, Algorithm algorithm);

// On a rank, before: kGradients, kLoss or kNorm.
SumOrder order_on_rank(Summed what);
// The same for numbers: losses of microbatches, squares of gradients.
double sum_on_rank(Summed what, std::span<const double> values);

// For a call of a layer, of `bytes`: the rank has little else to do until it is done.
Algorithm prompt_algorithm(Collective collective, int64_t bytes, int ranks);

}  // namespace lockstep::program
