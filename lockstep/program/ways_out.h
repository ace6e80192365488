// What to change where memory is short: other layouts of the same job, each predicted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/config/run_config.h"
#include "lockstep/program/memory.h"

namespace lockstep::program {

struct WayOut {
  std::string change;    // "memory.recompute = \"full\""
  int64_t peak = 0;      // predicted, of the rank; with another number of stages of the rank that then needs most
  int64_t saved = 0;     // of the peak
  double slower = 0;     // predicted time of a step: 0.04 = 4 % more (step_cost.h)
  bool same_numbers = true;
  bool fits = false;     // within memory.device_limit, on every stage of a pipeline
};

// The `most` cheapest single changes of the configuration that are valid for its model and ranks and lower the peak of
// `rank`: recomputation, a higher zero stage, smaller microbatches, offload, tensor parallelism, more stages, bf16. Those that fit the
// limit come first, among them those that keep the numbers, among those the fastest; of those that do not fit, the ones
// that save most. Empty where nothing helps.
std::vector<WayOut> ways_out(const config::RunConfig& config, const Layout& layout, int rank, size_t most = 3);

// The table of an out-of-memory message: bytes by category, predicted and (where there are any) measured, and the ways out.
std::string shortage_text(const config::RunConfig& config, const Layout& layout, int rank,
                          const std::optional<MemoryBytes>& measured);

// OutOfMemoryError LS4003 where the predicted peak of a rank is above memory.device_limit, before anything starts; with
// the table of the rank that needs most.
void check_device_limit(const config::RunConfig& config, const Layout& layout);

}  // namespace lockstep::program
