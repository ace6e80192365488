// How many ranks of `lockstep generate` can hold a model together.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/arch/model_config.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::apps {

// Each has whole heads, and of key/value heads whole ones or one that it shares.
inline bool ranks_can_hold(const arch::ModelConfig& model, int64_t ranks) {
  return model.heads % ranks == 0 && (model.kv_heads % ranks == 0 || ranks % model.kv_heads == 0);
}

// Where they cannot: why, with all numbers that can, the nearest first. `key`: what says the number; -n of `context` times as many.
inline std::optional<config::LayoutProblem> heads_problem(const arch::ModelConfig& model, int64_t ranks, const std::string& key,
                                                          int64_t context = 1) {
  if (ranks_can_hold(model, ranks)) return std::nullopt;
  config::LayoutProblem problem{
      .key = key,
      .what = model.heads % ranks != 0
                  ? cat("heads(", model.heads, ") % tp(", ranks, ") = ", model.heads % ranks, ": ranks hold whole heads")
                  : cat("neither of kv_heads(", model.kv_heads, ") and tp(", ranks, ") divides the other"),
      .ways = config::divisors_near(key, model.heads, ranks)};
  std::erase_if(problem.ways, [&](const config::Suggestion& way) { return !ranks_can_hold(model, std::stoll(*way.changes[0].value)); });
  for (config::Suggestion& way : problem.ways) {
    std::string& value = *way.changes[0].value;
    if (key == config::kRanks) value = std::to_string(std::stoll(value) * context);
  }
  return problem;
}

// RefusedConfig LS1007 where they cannot, with two numbers that can.
inline void check_heads(const arch::ModelConfig& model, int64_t ranks, const std::string& key = config::kRanks) {
  std::optional<config::LayoutProblem> problem = heads_problem(model, ranks, key);
  if (!problem) return;
  problem->ways.resize(std::min<size_t>(2, problem->ways.size()));
  config::refuse({}, "LS1007", "", {*problem});
}

}  // namespace lockstep::apps
