#include "lockstep/program/summation.h"

#include "lockstep/base/check.h"

namespace lockstep::program {
namespace {

constexpr int64_t kFp32 = 4, kFp64 = 8, kBf16 = 2;  // bytes

Summation made_by(Collective collective, Algorithm algorithm, int64_t element_size) {
  return {.collective = collective, .algorithm = algorithm, .element_size = element_size, .order = order_of(collective, algorithm)};
}

Summation gradient_sum(const Layout& layout, arch::ParameterGroup of) {
  if (layout.shards(of) == 1) return made_by(Collective::kAllReduce, Algorithm::kRing, kFp32);
  if (layout.reduce_precision_of(of) == config::Precision::kFp32) return made_by(Collective::kReduceScatter, Algorithm::kRing, kFp32);
  return {.collective = Collective::kAllToAll, .algorithm = Algorithm::kDirect, .element_size = kBf16, .order = SumOrder::kRanks};
}

}  // namespace

Summation sum_over_ranks(const Layout& layout, Summed what, arch::ParameterGroup of) {
  switch (what) {
    case Summed::kGradients:
      return gradient_sum(layout, of);
    case Summed::kServerGradients:
      return made_by(Collective::kReduce, Algorithm::kDirect, kFp32);
    case Summed::kGradientCopies:
    case Summed::kTiedGradients:
    case Summed::kPartialGradients:
      return made_by(Collective::kAllReduce, Algorithm::kRing, kFp32);
    case Summed::kLoss:
    case Summed::kTokens:
    case Summed::kNorm:
      return made_by(Collective::kAllReduce, Algorithm::kDirect, kFp64);
    case Summed::kActivations:
      break;
  }
  throw InternalError("sums inside layers are made by their size");
}

SumOrder order_of(Collective collective, Algorithm algorithm) {
  if (collective != Collective::kAllReduce && collective != Collective::kReduce && collective != Collective::kReduceScatter)
    return SumOrder::kNone;
  switch (algorithm) {
    case Algorithm::kRing:
      return SumOrder::kRing;
    case Algorithm::kTree:
    case Algorithm::kHalvingDoubling:
      return SumOrder::kTree;
    case Algorithm::kDirect:
    case Algorithm::kExchange:
      return SumOrder::kRanks;
  }
  throw InternalError("no such algorithm");
}

SumOrder order_on_rank(Summed what) {
  LOCKSTEP_CHECK(what == Summed::kGradients || what == Summed::kLoss || what == Summed::kNorm, "sum ", static_cast<int>(what));
  return what == Summed::kGradients ? SumOrder::kList : SumOrder::kIndex;
}

double sum_on_rank(Summed what, std::span<const double> values) {
  LOCKSTEP_CHECK(order_on_rank(what) == SumOrder::kIndex, "no other order of numbers is built");
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

Algorithm prompt_algorithm(Collective collective, int64_t bytes, int ranks) {
  // With several peers a direct call of many bytes waits for all of them at every piece; a ring only for one.
  constexpr int64_t kLarge = 256 << 10;
  if (ranks > 2 && bytes > kLarge && supports(collective, Algorithm::kRing)) return Algorithm::kRing;
  return collective == Collective::kAllReduce ? prompt_all_reduce(bytes, ranks) : Algorithm::kDirect;
}

}  // namespace lockstep::program
