// Experts beside the ranks that share them, and beside what trains them.
#include <algorithm>
#include <numeric>

#include "lockstep/base/checked.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

// Ranks of one coordinate on pp, over which the grid of experts lies.
int64_t ranks_of_stage(const RunConfig& config, int world_size) {
  return saturating_mul(data_parallel_size(config, world_size), config.parallel.tp);
}

// Keys of [parallel] and [moe] that a model without experts would not read.
void unused_key_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  expect(parallel.ep == 1, "parallel.ep", cat("ep(", parallel.ep, ") ranks share out experts, but the model has none"),
         values_of("parallel.ep", {"1"}));
  expect(parallel.etp == 1, "parallel.etp", cat("etp(", parallel.etp, ") ranks share each expert, but the model has none"),
         values_of("parallel.etp", {"1"}));
  const RunConfig unset{};
  if (config.moe == unset.moe) return;
  for (const Section& section : sections()) {
    if (section.name != "moe") continue;
    for (const Field& field : section.fields)
      expect(field.print(config) == field.print(unset), field.key().c_str(),
             cat(field.key(), " = ", field.print(config), " is of experts, but the model has none"), {left_out(field.key())});
  }
}

// The experts and their widths in equal parts, and the parts over the ranks of a stage.
void grid_problems(const RunConfig& config, int world_size, const Expect& expect) {
  const int64_t ep = config.parallel.ep, etp = config.parallel.etp, experts = *config.model.experts;
  expect(experts % ep == 0, "parallel.ep", cat("model.experts(", experts, ") % ep(", ep, ") = ", experts % ep),
         divisors_near("parallel.ep", experts, ep));
  if (const int64_t ffn = config.model.expert_ffn.value_or(etp); ffn > 0)
    expect(ffn % etp == 0, "parallel.etp", cat("model.expert_ffn(", ffn, ") % etp(", etp, ") = ", ffn % etp),
           divisors_near("parallel.etp", ffn, etp));
  const int64_t ranks = ranks_of_stage(config, world_size), group = saturating_mul(ep, etp);
  if (group <= kMostRanks && ranks % group == 0) return;
  std::vector<Suggestion> ways;
  if (ranks % etp == 0) ways = divisors_near("parallel.ep", ranks / etp, ep);
  if (ranks % ep == 0) ways = ways + divisors_near("parallel.etp", ranks / ep, etp);
  ways.push_back({.changes = {{"parallel.ep", "1"}, {"parallel.etp", "1"}}});
  expect(false, ep > 1 ? "parallel.ep" : "parallel.etp",
         cat("[mesh] dp(", data_parallel_size(config, world_size), ") x tp(", config.parallel.tp, ") = ", ranks, " ranks of a stage % ",
             etp == 1 ? "" : cat("etp(", etp, ") x "), "ep(", ep, ") = ", ranks % group),
         ways);
}

void balance_problems(const RunConfig& config, const Expect& expect) {
  const MoeSection& moe = config.moe;
  const MoeSection unset{};
  const bool experts_choose = config.model.router == Router::kExpertChoice;
  expect(!experts_choose || moe.balance == Balance::kNone, "moe.balance",
         cat("balance = \"", name_of(moe.balance), "\", but with router expert_choice every expert has the same load"),
         values_of("moe.balance", {"none"}) + values_of("model.router", {"softmax_after_topk", "softmax", "sigmoid"}));
  expect(moe.drop == unset.drop || (moe.capacity_factor && !experts_choose), "moe.drop",
         cat("drop = \"", name_of(moe.drop), "\" says which tokens are beyond ",
             experts_choose ? "a capacity, but with router expert_choice an expert takes its best"
                            : "capacity_factor, which is not set: none are dropped"),
         std::vector{left_out("moe.drop")} + (experts_choose ? std::vector<Suggestion>{} : values_of("moe.capacity_factor", {"1.25"})));
  expect(moe.aux_coefficient == unset.aux_coefficient || moe.balance == Balance::kAux, "moe.aux_coefficient",
         cat("aux_coefficient(", number_text(moe.aux_coefficient), ") beside balance = \"", name_of(moe.balance), "\""),
         std::vector{left_out("moe.aux_coefficient")} + values_of("moe.balance", {"aux"}));
  expect(moe.bias_rate == unset.bias_rate || moe.balance == Balance::kBias, "moe.bias_rate",
         cat("bias_rate(", number_text(moe.bias_rate), ") beside balance = \"", name_of(moe.balance), "\""),
         std::vector{left_out("moe.bias_rate")} + values_of("moe.balance", {"bias"}));
}

}  // namespace

int64_t expert_shards(const RunConfig& config, int world_size) {
  if (zero_stage(config) == 0) return 1;
  const int64_t holders = ranks_of_stage(config, world_size) / (int64_t{config.parallel.ep} * config.parallel.etp);
  return holders / std::gcd<int64_t, int64_t>(data_degrees(config, world_size).replicate, holders);
}

void expert_problems(const RunConfig& config, int world_size, const Expect& expect) {
  if (!config.model.experts) return;  // only the preset says it
  if (*config.model.experts < 1) return unused_key_problems(config, expect);
  const ParallelSection& parallel = config.parallel;
  grid_problems(config, world_size, expect);
  balance_problems(config, expect);
  expect(parallel.data_parallel == DataParallel::kRing || parallel.tp == 1 || parallel.ep > 1 || parallel.etp > 1, "parallel.data_parallel",
         cat("a parameter server sums over dp alone, but with tp(", parallel.tp, ") gradients of experts are parts of a sum over tp too"),
         {{.changes = {{"parallel.data_parallel", "ring"}}}, {.changes = {{"parallel.tp", "1"}}}});
  expect(parallel.data_parallel == DataParallel::kRing || (parallel.ep == 1 && parallel.etp == 1), "parallel.data_parallel",
         cat("a parameter server updates all parameters, but with ep(", parallel.ep, ") x etp(", parallel.etp,
             ") no rank has all experts"),
         {{.changes = {{"parallel.data_parallel", "ring"}}}, {.changes = {{"parallel.ep", "1"}, {"parallel.etp", "1"}}}});
}

}  // namespace lockstep::config
