// The parts of layout_problems(), and how they name values that would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/config/run_config.h"

namespace lockstep::config {

// Notes a problem where the first argument is false: the key to look at, the equation with its values, what would fit.
using Expect = std::function<void(bool, const char*, std::string, std::string)>;

// The divisors of `number` nearest to `wanted`, below and above: "3 or 4".
std::string divisors_near(int64_t number, int64_t wanted);
// The positive multiples of `unit` nearest to `wanted`.
std::string multiples_near(int64_t unit, int64_t wanted);

// The product of the axes and the number of ranks.
void mesh_problems(const RunConfig& config, int world_size, const Expect& expect);
// Stages, their layers and the schedule, as far as they can be judged without the schedule itself.
void pipeline_problems(const RunConfig& config, const Expect& expect);
void trace_problems(const RunConfig& config, const Expect& expect);

}  // namespace lockstep::config
