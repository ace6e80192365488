// The parts of layout_problems(), and how they name values that would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::config {

// What would fit: suggestions, or words alone.
struct Ways {
  Ways(const char* words) : text(words) {}
  Ways(std::string words) : text(std::move(words)) {}
  Ways(std::vector<Suggestion> suggestions) : text(text_of(suggestions)), list(std::move(suggestions)) {}
  Ways(std::initializer_list<Suggestion> suggestions) : Ways(std::vector<Suggestion>(suggestions)) {}
  std::string text;
  std::vector<Suggestion> list{};
};
std::vector<Suggestion> operator+(std::vector<Suggestion> some, const std::vector<Suggestion>& more);

// Notes a problem where the first argument is false: the key to look at, the equation with its values, what would fit.
using Expect = std::function<void(bool, const char*, std::string, Ways)>;

// The divisors of `number` near `wanted`, the nearest first, as values of `key`; of a prime beyond 2^40 only 1 and itself.
std::vector<Suggestion> divisors_near(const std::string& key, int64_t number, int64_t wanted);
// The positive multiples of `unit` next to `wanted`, below and above.
std::vector<Suggestion> multiples_near(const std::string& key, int64_t unit, int64_t wanted);

// More ranks than any mesh may have: nothing else is judged then.
bool too_many_ranks(const RunConfig& config, int world_size, const Expect& expect);
// The product of the axes and the number of ranks.
void mesh_problems(const RunConfig& config, int world_size, const Expect& expect);
// Stages, their layers and the schedule, as far as they can be judged without the schedule itself.
void pipeline_problems(const RunConfig& config, const Expect& expect);
void trace_problems(const RunConfig& config, const Expect& expect);

}  // namespace lockstep::config
