// Sums of the terms of a step.
#pragma once

#include <array>

#include "lockstep/plan/time/step_estimate.h"

namespace lockstep::plan {

using BreakdownTerm = double Breakdown::*;
inline constexpr std::array<BreakdownTerm, 12> kBreakdownTerms = {
    &Breakdown::products, &Breakdown::attention, &Breakdown::pointwise, &Breakdown::recompute, &Breakdown::optimizer, &Breakdown::host,
    &Breakdown::tensor,   &Breakdown::context,   &Breakdown::experts,   &Breakdown::pipeline,  &Breakdown::data,      &Breakdown::bubble};
static_assert(sizeof(Breakdown) == kBreakdownTerms.size() * sizeof(double));

inline void add(Breakdown& to, const Breakdown& parts, double times = 1) {
  for (const BreakdownTerm term : kBreakdownTerms) to.*term += times * parts.*term;
}
// Without waits: what the rank computes, and its host.
inline double busy(const Breakdown& parts) {
  return parts.products + parts.attention + parts.pointwise + parts.recompute + parts.optimizer + parts.host;
}

}  // namespace lockstep::plan
