// How many ranks of `lockstep generate` can hold a model together.
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "lockstep/arch/layer_letters.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::apps {

inline bool one_divides(int64_t a, int64_t b) { return a % b == 0 || b % a == 0; }

// Each has whole heads, and of key/value heads whole ones or one that it shares; of state spaces likewise heads and groups.
inline bool ranks_can_hold(const arch::ModelConfig& model, int64_t ranks) {
  if (arch::has_attention(model) && (model.heads % ranks != 0 || !one_divides(model.kv_heads, ranks))) return false;
  const arch::StateSpaceSizes& states = model.state_space;
  return !model.has_state_space() || (states.heads % ranks == 0 && one_divides(states.groups, ranks) &&
                                      (states.norm_groups <= 1 || states.norm_groups % ranks == 0));
}

// Why they cannot.
inline std::string held_text(const arch::ModelConfig& model, int64_t ranks) {
  const auto not_whole = [&](const char* what, int64_t heads) {
    return cat(what, "(", heads, ") % tp(", ranks, ") = ", heads % ranks, ": ranks hold whole heads");
  };
  const auto not_shared = [&](const char* what, int64_t number) {
    return cat("neither of ", what, "(", number, ") and tp(", ranks, ") divides the other");
  };
  const arch::StateSpaceSizes& states = model.state_space;
  if (arch::has_attention(model)) {
    if (model.heads % ranks != 0) return not_whole("heads", model.heads);
    if (!one_divides(model.kv_heads, ranks)) return not_shared("kv_heads", model.kv_heads);
  }
  if (states.heads % ranks != 0) return not_whole("state_heads", states.heads);
  if (!one_divides(states.groups, ranks)) return not_shared("state_groups", states.groups);
  return cat("the norm of a state space is over ", states.norm_groups, " groups, which tp(", ranks, ") does not divide");
}

// Where they cannot: why, with all numbers that can, the nearest first. `key`: what says the number; -n of `context` times as many.
inline std::optional<config::LayoutProblem> heads_problem(const arch::ModelConfig& model, int64_t ranks, const std::string& key,
                                                          int64_t context = 1) {
  if (ranks_can_hold(model, ranks)) return std::nullopt;
  config::LayoutProblem problem{
      .key = key,
      .what = held_text(model, ranks),
      .ways = config::divisors_near(key, arch::has_attention(model) ? model.heads : model.state_space.heads, ranks)};
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
