// The parts of layout_problems(), and how they name values that would fit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/config/run_config.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::config {

// What would fit; and what would beside the configuration (LayoutProblem::elsewhere).
struct Ways {
  Ways(std::vector<Suggestion> suggestions, std::string words = {}) : list(std::move(suggestions)), elsewhere(std::move(words)) {}
  Ways(std::initializer_list<Suggestion> suggestions) : list(suggestions) {}
  std::vector<Suggestion> list;
  std::string elsewhere{};
};
std::vector<Suggestion> operator+(std::vector<Suggestion> some, const std::vector<Suggestion>& more);

// Notes a problem where the first argument is false: the key to look at, the equation with its values, what would fit.
using Expect = std::function<void(bool, const char*, std::string, Ways)>;

// The divisors of `number` near `wanted`, the nearest first, as values of `key`; of a prime beyond 2^40 only 1 and itself.
std::vector<Suggestion> divisors_near(const std::string& key, int64_t number, int64_t wanted);
// The positive multiples of `unit` next to `wanted`, below and above.
std::vector<Suggestion> multiples_near(const std::string& key, int64_t unit, int64_t wanted);
// `unit` times the powers of two that make at most `most`, the largest first.
std::vector<Suggestion> powers_below(const std::string& key, int64_t most, int64_t unit = 1);

// So many blocks for each of so many stages, none of which is left without a layer, and as TOML: "3,4*2,3".
std::vector<int> even_blocks(int64_t stages, int64_t layers);
std::string blocks_text(const std::vector<int>& blocks);

// More ranks than any mesh may have, which hides all else.
bool too_many_ranks(const RunConfig& config, int world_size, const Expect& expect);
// The product of the axes and the number of ranks.
void mesh_problems(const RunConfig& config, int world_size, const Expect& expect);
// Stages, their layers and the schedule, as far as they can be judged without the schedule itself.
void pipeline_problems(const RunConfig& config, const Expect& expect);
// Sequences in parts, by ranks and by documents.
void context_problems(const RunConfig& config, const Expect& expect);
// Of a model whose experts are known: config.model.experts is set, 0 where it has none.
void expert_problems(const RunConfig& config, int world_size, const Expect& expect);
void trace_problems(const RunConfig& config, const Expect& expect);

}  // namespace lockstep::config
