#include "lockstep/plan/expert_limits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lockstep/arch/expert_branch.h"

namespace lockstep::plan {

std::vector<double> round_limits(const program::Layout& layout) {
  program::Layout unlimited = layout;
  unlimited.moe.imbalance_limit.reset();
  const arch::ExpertRows rows(unlimited.model, unlimited.cost_input(0));
  const double worst = static_cast<double>(rows.received) / static_cast<double>(std::max<int64_t>(rows.balanced, 1));
  std::vector<double> limits = {1};
  for (int i = 1;; ++i) {
    const double next = std::ldexp(1 + (i % 4) / 4.0, i / 4);
    if (next >= worst) return limits;
    limits.push_back(next);
  }
}

}  // namespace lockstep::plan
