// What to change where memory is short: other layouts of the same job, each predicted.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/config/load.h"
#include "lockstep/plan/room.h"
#include "lockstep/program/predict/memory.h"

namespace lockstep::plan {

struct WayOut {
  std::string change;    // "memory.recompute = \"full\""
  std::vector<config::Override> set{};  // the same as flags
  int ranks = 0;         // -n, where the number of ranks changes; else 0
  int64_t peak = 0;      // predicted, of the rank; with other stages or ranks of the rank that then needs most; of a host or
                         // a GPU what its ranks take together
  int64_t saved = 0;     // of that
  double slower = 0;     // predicted time of a step: 0.04 = 4 % more (step_cost.h)
  bool same_numbers = true;
  bool fits = false;     // in the room; with memory.device_limit on every stage of a pipeline
};

struct Shortage {
  int rank = 0;    // whose peak is to be lowered
  Room room{};
  size_t most = 3;  // ways to be named
};

// The cheapest changes of the configuration that are valid for its model and ranks and lower what is needed: recomputation, a
// higher zero stage, smaller microbatches, offload from a GPU, none on the CPU, tensor parallelism, more stages, fewer ranks of
// the host, saving without a copy, bf16, shorter sequences. Those that fit come first, among them those that keep the
// numbers, among those the fastest; of those that do not fit, the ones that save most. Where no change fits alone, the
// first one that does is made of up to three, which is not tried for the longest programs. Empty where nothing helps.
std::vector<WayOut> ways_out(const config::RunConfig& config, const program::Layout& layout, const Shortage& shortage);

// The table of an out-of-memory message: bytes by category, predicted and (where there are any) measured, and the ways out.
std::string shortage_text(const config::RunConfig& config, const program::Layout& layout, const Shortage& shortage,
                          const std::optional<program::MemoryBytes>& measured);
// The table of ways out alone.
std::string ways_text(const std::vector<WayOut>& ways, const Room& room);

// OutOfMemoryError LS4003 where the plan does not fit the room, before anything starts; with the table of the rank that
// needs most.
void check_room(const config::RunConfig& config, const program::Layout& layout, const Room& room);

}  // namespace lockstep::plan
