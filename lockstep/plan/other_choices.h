// The layout that was chosen with one choice changed: what the opposite costs.
#pragma once

#include <vector>

#include "lockstep/plan/plan_html.h"

namespace lockstep::plan {

// What the layouts are made and estimated from.
struct Choosing {
  const config::RunConfig& config;  // model, batch, sequence, precision
  const arch::ModelConfig& model;
  const Cluster& cluster;
  const Stack& stack;
  EstimateOptions options{};
  Candidate candidate{};  // that was chosen
};

// Twice and half of each degree, tensor parallelism wider than an NVLink domain, no pipeline, the other ZeRO stages and recomputations, another
// micro-batch, 1F1B, no sequence parallelism: on as many devices, dp takes what is left. What is not legal is left out; what does not fit is
// told. `now` is the estimate of the candidate.
std::vector<WhatIf> other_choices(const Choosing& choosing, const StepEstimate& now);

}  // namespace lockstep::plan
