// Predictions for programs that judge them: a JSON object on a line for every row, in their order.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/evidence/prediction.h"

namespace lockstep::plan {

// {"id", "step_time_s", "mfu", "mfu_causal", "peak_memory_bytes", "band": [low, high], "breakdown": {term: seconds}, "memory": {"allocated",
// "reserved", "device"}, "own_memory_bytes", "fits", "stack", "widest", "assumed": {field: value}, "notes": [..]}. Seconds, bytes, shares. `mfu`
// counts attention full, as PaLM's does. `peak_memory_bytes` is what the allocator of the software that ran it reserves, which logs print most;
// `own_memory_bytes` what this library would allocate. A row without a prediction has null in the place of its numbers and a "reason".
std::string runs_json(const std::vector<Prediction>& predictions);

}  // namespace lockstep::plan
