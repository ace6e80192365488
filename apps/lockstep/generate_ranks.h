// How the ranks of `lockstep generate` hold a model and its texts together: they are tp x cp, and the experts lie over ep x etp of the same
// ranks, as in training (mesh::expert_fold).
#pragma once

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/lockstep/command_line.h"
#include "apps/lockstep/generate_heads.h"
#include "lockstep/arch/model_config.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/suggestion.h"

namespace lockstep::apps {

// What the command line says of them.
struct GenerateDegrees {
  std::optional<int> tp{}, cp{}, ep{}, etp{};
  int context() const { return cp.value_or(1); }
  int experts() const { return ep.value_or(1); }
  int expert_width() const { return etp.value_or(1); }
  bool share_experts() const { return experts() > 1 || expert_width() > 1; }
  int tensor(int ranks) const { return ranks / context(); }  // of so many
  // Where no -n says it.
  int ranks() const { return tp ? *tp * context() : std::lcm(context(), experts() * expert_width()); }
};

using GenerateKey = std::pair<std::string_view, std::optional<int> GenerateDegrees::*>;
inline constexpr GenerateKey kGenerateKeys[] = {
    {"parallel.tp", &GenerateDegrees::tp}, {"parallel.cp", &GenerateDegrees::cp},
    {"parallel.ep", &GenerateDegrees::ep}, {"parallel.etp", &GenerateDegrees::etp}};

// The override is one that generation reads.
inline bool generate_reads(std::string_view key) {
  return std::ranges::count(kGenerateKeys, key, &GenerateKey::first) > 0;
}

// ConfigError LS1005 for what is no degree.
inline GenerateDegrees generate_degrees(const CommandLine& command_line) {
  GenerateDegrees degrees;
  for (const config::Override& change : command_line.overrides) {
    const auto key = std::ranges::find(kGenerateKeys, std::string_view(change.key), &GenerateKey::first);
    if (key == std::end(kGenerateKeys)) continue;
    std::optional<int>& degree = degrees.*key->second;
    degree = parse_number<int>(change.value);
    if (degree.value_or(0) < 1 || *degree > 1024) reject("LS1005", cat("--", change.key, " ", change.value, ": 1 to 1024 is needed"));
  }
  return degrees;
}

// Where the ranks are no multiple of cp: why, with numbers that suit.
inline std::optional<config::LayoutProblem> context_problem(int ranks, int context) {
  if (ranks % context == 0) return std::nullopt;
  using config::operator+;
  return config::LayoutProblem{.key = "parallel.cp",
                               .what = cat("-n(", ranks, ") % cp(", context, ") = ", ranks % context,
                                           ": the ranks of lockstep generate are tp x cp"),
                               .ways = config::multiples_near(config::kRanks, context, ranks) +
                                       config::divisors_near("parallel.cp", ranks, context)};
}

// RefusedConfig LS1007 where parallel.tp x cp is another number than that of the ranks.
inline void check_degree(const GenerateDegrees& degrees, int ranks) {
  if (!degrees.tp || degrees.ranks() == ranks) return;
  const int context = degrees.context(), wanted = degrees.ranks();
  const std::string why = ": the ranks of lockstep generate hold one model";
  config::LayoutProblem problem{.key = "parallel.tp",
                                .what = cat("parallel.tp(", *degrees.tp, ") != -n ", ranks, why),
                                .ways = {{.changes = {{.key = "parallel.tp"}}, .text = "give one of the two"}}};
  if (context > 1) {
    problem.what = cat("parallel.tp(", *degrees.tp, ") x cp(", context, ") = ", wanted, " != -n ", ranks, why);
    problem.ways = {{.changes = {{config::kRanks, std::to_string(wanted)}}}};
    if (ranks % context == 0) problem.ways.push_back(config::left_out("parallel.tp"));
  }
  config::refuse({}, "LS1007", "", {problem});
}

// What does not hold between a model, `ranks` ranks, and parallel.cp, ep and etp of `config`.
inline std::vector<config::LayoutProblem> rank_problems(const arch::ModelConfig& model, config::RunConfig config, int ranks,
                                                        const std::string& key) {
  const int context = config.parallel.cp;
  if (const auto problem = context_problem(ranks, context)) return {*problem};
  std::vector<config::LayoutProblem> problems;
  if (const auto heads = heads_problem(model, ranks / context, key, context)) problems.push_back(*heads);
  config.parallel.tp = ranks / context;
  config.model.experts = model.experts.count;
  config.model.expert_ffn = model.experts.ffn;
  const int64_t shared = int64_t{config.parallel.ep} * config.parallel.etp;
  config::expert_problems(config, ranks, [&](bool holds, const char* where, std::string what, config::Ways ways) {
    if (holds) return;
    if (ranks % shared != 0) {
      const int64_t unit = std::lcm(shared, int64_t{context});  // of ranks
      ways.list = std::move(ways.list) + (key == config::kRanks ? config::multiples_near(key, unit, ranks)
                                                                : config::multiples_near(key, unit / context, ranks / context));
    }
    problems.push_back({.key = where, .what = std::move(what), .ways = std::move(ways.list), .elsewhere = std::move(ways.elsewhere)});
  });
  return problems;
}

// RefusedConfig LS1007 where the ranks cannot hold the model so, with degrees near them with which they can. `key`: what says `ranks`.
inline void check_ranks(const arch::ModelConfig& model, const GenerateDegrees& degrees, int ranks, const std::string& key = config::kRanks) {
  check_degree(degrees, ranks);
  const int context = degrees.context();
  if (!degrees.share_experts() && context == 1) return check_heads(model, ranks, key);
  config::Trial trial;
  trial.world_size = ranks;
  trial.loaded.config.parallel.tp = std::max(1, degrees.tensor(ranks));  // fewer ranks than cp: refused below
  trial.loaded.config.parallel.cp = context;
  trial.loaded.config.parallel.ep = degrees.experts();
  trial.loaded.config.parallel.etp = degrees.expert_width();
  const auto rules = [&](const config::Trial& changed) {
    const config::RunConfig& config = changed.loaded.config;
    return rank_problems(model, config, key == config::kRanks ? changed.world_size : config.parallel.tp * config.parallel.cp, key);
  };
  std::vector<config::LayoutProblem> problems = rules(trial);
  if (problems.empty()) return;
  config::keep_what_holds(problems, trial, rules);
  config::refuse({}, "LS1007", problems.size() == 1 ? "" : config::layout_heading(problems.size()), problems);
}

}  // namespace lockstep::apps
