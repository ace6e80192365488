// What the actions of a step cost, written by a person or a program: the input of a simulation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/program/program.h"

namespace lockstep::plan {

// Seconds of one microbatch.
struct WorkCost {
  double embedding = 0, block = 0, head = 0;
  std::vector<double> layers{};  // of every layer instead
  std::vector<double> stages{};  // or of every stage, its layers taking equal parts
  double of(const program::Layout& layout, int layer) const;
};

// latency + bytes / bandwidth; without a bandwidth the bytes take no time.
struct LinkCost {
  double bandwidth = 0;  // bytes per second; 0 = without limit
  double latency = 0;    // seconds
  double seconds(double bytes) const { return latency + (bandwidth > 0 ? bytes / bandwidth : 0); }
};

// A TOML file with the tables forward, input, weight, recompute (keys embedding, block, head; or layers; or stages), transfer,
// collective, copy (keys bandwidth, latency) and update (keys norm, step). All times in seconds, bandwidths in bytes per
// second. B costs input + weight. What is not there costs nothing.
//   transfer    SEND_F, SEND_B: from one pipeline rank to the next
//   collective  all between several ranks, those inside of layers over tp, cp, ep and etp included: bytes that a rank sends
//   copy        FETCH, EVICT, SHARD_GRAD to the host: between device and host or disk
struct StepCosts {
  WorkCost forward, input, weight, recompute;
  LinkCost transfer, collective, copy;
  double norm = 0, step = 0;  // of a rank
  std::string source = {};
};

// ConfigError LS1084 with the line for what is not such a file: unknown table or key, a value that is no number of zero
// or more, a list of another length than the layout has layers or stages.
StepCosts parse_costs(std::string_view text, std::string_view origin, const program::Layout& layout);

}  // namespace lockstep::plan
