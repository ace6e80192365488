// Which optimizer updates which row of the table.
#include <set>
#include <string_view>

#include "lockstep/arch/params.h"
#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/config/fields.h"

namespace lockstep::arch {
namespace {

using config::OptimizerKind;
using config::OptimizerRule;

// `pattern` with * for any text, of all of `name`.
bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] != '*') return !name.empty() && name[0] == pattern[0] && matches(pattern.substr(1), name.substr(1));
  for (size_t skipped = 0; skipped <= name.size(); ++skipped)
    if (matches(pattern.substr(1), name.substr(skipped))) return true;
  return false;
}

bool names(const OptimizerRule& rule, const ParamSpec& spec) {
  return (rule.match.empty() || matches(rule.match, spec.name)) && (!rule.of || *rule.of == spec.of);
}

const OptimizerRule* rule_of(const OptimizerChoice& choice, const ParamSpec& spec) {
  for (const OptimizerRule& rule : choice.rules.list)
    if (names(rule, spec)) return &rule;
  return nullptr;
}

const OptimizerSpec& optimizer_of(const OptimizerChoice& choice, const OptimizerRule* rule, const ParamSpec& spec) {
  const OptimizerKind by_class = spec.of == config::ParameterClass::kMatrix ? choice.kind : OptimizerKind::kAdamW;
  return optimizer_spec(config::name_of(rule && rule->optimizer ? *rule->optimizer : by_class));
}

bool fits(const OptimizerSpec& optimizer, const ParamSpec& spec) { return !optimizer.whole_matrix || spec.shape.size() == 2; }

}  // namespace

void choose_optimizers(const OptimizerChoice& choice, std::vector<ParamSpec>& table) {
  if (choice.kind == OptimizerKind::kAdamW && choice.rules.list.empty()) return;  // as the rows are made
  for (ParamSpec& spec : table) {
    const OptimizerRule* rule = rule_of(choice, spec);
    spec.update = {.optimizer = &optimizer_of(choice, rule, spec)};
    LOCKSTEP_CHECK(fits(*spec.update.optimizer, spec), spec.update.optimizer->id, " of ", spec.name, ", which is no matrix");
    if (!rule) continue;
    spec.update.lr_factor = rule->lr.value_or(1);
    spec.update.weight_decay = rule->decay;
    if (rule->decay) spec.weight_decay = *rule->decay > 0;
  }
}

std::vector<std::string> rule_problems(const OptimizerChoice& choice, const std::vector<ParamSpec>& table) {
  std::vector<std::string> problems;
  std::set<const OptimizerRule*> used, told;
  for (const ParamSpec& spec : table) {
    for (const OptimizerRule& rule : choice.rules.list)
      if (names(rule, spec)) used.insert(&rule);
    const OptimizerRule* rule = rule_of(choice, spec);
    if (fits(optimizer_of(choice, rule, spec), spec) || !told.insert(rule).second) continue;
    problems.push_back(cat("optimizer.rules gives ", spec.name, " to ", optimizer_of(choice, rule, spec).id,
                           ", which updates matrices, but its shape has ", spec.shape.size(), " dimensions"));
  }
  for (size_t i = 0; i < choice.rules.list.size(); ++i)
    if (!used.contains(&choice.rules.list[i])) problems.push_back(cat("rule ", i + 1, " of optimizer.rules names no parameter"));
  return problems;
}

bool is_scattered_matrix(const ParamSpec& spec, int shards) {
  return spec.update.optimizer->whole_matrix && (shards > 1 || spec.placements.contains(mesh::Axis::kTp));
}

}  // namespace lockstep::arch
