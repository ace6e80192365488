// Experts beside the ranks that share them, and beside what trains them.
#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/checked.h"
#include "lockstep/base/text.h"
#include "lockstep/config/check.h"
#include "lockstep/config/check_parts.h"
#include "lockstep/config/fields.h"

namespace lockstep::config {
namespace {

// Ranks of one coordinate on pp, over which the grid of experts lies.
int64_t ranks_of_stage(const RunConfig& config, int world_size) {
  return saturating_mul(data_parallel_size(config, world_size), saturating_mul(config.parallel.cp, config.parallel.tp));
}

// ranks_per_node is of one dispatcher alone.
Suggestion dispatcher_left_out(const ParallelSection& parallel) {
  if (parallel.ranks_per_node == 0) return left_out("parallel.dispatcher");
  return {.changes = {{.key = "parallel.dispatcher"}, {.key = "parallel.ranks_per_node"}}, .text = "leave dispatcher and ranks_per_node out"};
}

// Keys of [parallel] and [moe] that a model without experts would not read.
void unused_key_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  expect(parallel.ep == 1, "parallel.ep", cat("ep(", parallel.ep, ") ranks share out experts, but the model has none"),
         values_of("parallel.ep", {"1"}));
  expect(parallel.etp == 1, "parallel.etp", cat("etp(", parallel.etp, ") ranks share each expert, but the model has none"),
         values_of("parallel.etp", {"1"}));
  expect(!parallel.overlap_experts, "parallel.overlap_experts", "overlap_experts hides the way of tokens to experts, but the model has none",
         {left_out("parallel.overlap_experts")});
  expect(parallel.dispatcher == Dispatcher::kAllToAll, "parallel.dispatcher",
         cat("dispatcher = \"", name_of(parallel.dispatcher), "\" brings tokens to experts, but the model has none"),
         {dispatcher_left_out(parallel)});
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
         cat("[mesh] dp(", data_parallel_size(config, world_size), ") x ",
             config.parallel.cp == 1 ? "" : cat("cp(", config.parallel.cp, ") x "), "tp(", config.parallel.tp, ") = ", ranks, " ranks of a stage % ",
             etp == 1 ? "" : cat("etp(", etp, ") x "), "ep(", ep, ") = ", ranks % group),
         ways);
}

// Which tokens count where nothing counts tokens, or before it is known how many there were.
void scope_problems(const RunConfig& config, const Expect& expect) {
  const MoeSection& moe = config.moe;
  if (moe.scope != MoeScope::kLastStep) return;
  const bool experts_choose = config.model.router == Router::kExpertChoice;
  const std::vector<Suggestion> by_sequence = values_of("moe.scope", {"sequence"});
  expect(!experts_choose, "moe.scope",
         "scope = \"last_step\", but with router expert_choice experts choose among the tokens of this step", by_sequence);
  expect(experts_choose || moe.balance == Balance::kAux || moe.capacity_factor, "moe.scope",
         cat("scope = \"last_step\" is of the auxiliary loss or of a capacity: balance = \"", name_of(moe.balance),
             "\", and capacity_factor is not set"),
         std::vector{left_out("moe.scope")} + values_of("moe.balance", {"aux"}));
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

// What has no home on the ranks that hold the same experts. Ranks of tp can be such.
void sharing_problems(const RunConfig& config, int world_size, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const bool ring = parallel.data_parallel == DataParallel::kRing, folded = parallel.ep > 1 || parallel.etp > 1;
  expect(ring || !folded, "parallel.data_parallel",
         cat("a parameter server updates all parameters, but with ep(", parallel.ep, ") x etp(", parallel.etp,
             ") no rank has all experts"),
         {{.changes = {{"parallel.data_parallel", "ring"}}}, {.changes = {{"parallel.ep", "1"}, {"parallel.etp", "1"}}}});
  expect(ring || folded || parallel.tp == 1, "parallel.data_parallel",
         cat("a parameter server sums over dp alone, but with tp(", parallel.tp, ") gradients of experts are parts of a sum over tp too"),
         {{.changes = {{"parallel.data_parallel", "ring"}}}, {.changes = {{"parallel.tp", "1"}}}});
  const int zero = zero_stage(config);
  const bool alone = data_parallel_size(config, world_size) == 1 && config.parallel.cp == 1;  // else offload_problems() has said it of all parameters
  if (!config.memory.offload.has(Offloaded::kParameters) || zero == 0 || zero == 3 || !alone) return;
  const int64_t shards = expert_shards(config, world_size);
  expect(shards <= 1, "memory.offload",
         cat("parameters on the host, but with zero ", zero, " each of ", shards, " ranks updates a part of its experts, and needs all of them"),
         values_of("parallel.zero", {"3", "0"}));
}

// Two microbatches at a time: from where each may be, and what of both is there together.
void overlap_problems(const RunConfig& config, int world_size, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  if (!parallel.overlap_experts) return;
  const char* const key = "parallel.overlap_experts";
  const Suggestion without = left_out(key);
  const auto or_without = [&](std::vector<Suggestion> ways) { return std::move(ways) + std::vector{without}; };
  expect(parallel.ep > 1 || parallel.etp > 1, key, "overlap_experts beside ep(1) x etp(1): no token leaves its rank for an expert",
         {without});
  expect(parallel.overlap, key, "overlap_experts beside overlap = false: nothing is communicated beside other work",
         or_without(values_of("parallel.overlap", {"true"})));
  const ScheduleKind kind = parallel.schedule.kind;
  const int64_t parts = microbatches(config, world_size);
  if (pairs_of(kind, parallel.pp, parts) == Pairs::kNone)
    expect(false, key,
           cat("overlap_experts beside schedule ", name_of(kind), " of pp(", parallel.pp, ") ranks and ", parts,
               parts == 1 ? " microbatch" : " microbatches",
               ": it has no F beside a backward pass of another microbatch that the next stage does not wait for"),
           or_without(values_of("parallel.schedule", parallel.pp == 1 ? std::vector<std::string>{"1f1b"}
                                                                      : std::vector<std::string>{"interleaved", "zb-v", "dualpipe-v"})));
  expect(parallel.dispatcher == Dispatcher::kAllToAll, key,
         cat("overlap_experts beside dispatcher = \"", name_of(parallel.dispatcher), "\", whose exchanges have several calls that wait for each other"),
         {without, left_out("parallel.dispatcher")});
  expect(!config.moe.imbalance_limit, key,
         cat("overlap_experts beside imbalance_limit(", number_text(config.moe.imbalance_limit.value_or(0)),
             "): a layer in rounds has no two parts to divide it at"),
         {without, left_out("moe.imbalance_limit")});
  // Two passes through the layers in turns would gather each unit for every part.
  expect(zero_stage(config) < 3 && !config.memory.offload.has(Offloaded::kParameters), key,
         "overlap_experts beside parameters that are gathered or fetched for each use (zero = 3, offload parameters): two microbatches in turns "
         "would move them for every part of a block",
         {without});
}

// How tokens travel, which they do where several ranks share experts.
void dispatch_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const MoeSection& moe = config.moe;
  const int64_t ranks = int64_t{parallel.ep} * parallel.etp;
  const std::string alone = cat("but with ep(", parallel.ep, ") x etp(", parallel.etp, ") every rank has all experts");
  expect(ranks > 1 || parallel.dispatcher == Dispatcher::kAllToAll, "parallel.dispatcher",
         cat("dispatcher = \"", name_of(parallel.dispatcher), "\", ", alone), {dispatcher_left_out(parallel)});
  expect(ranks > 1 || !moe.imbalance_limit, "moe.imbalance_limit",
         cat("imbalance_limit(", number_text(moe.imbalance_limit.value_or(0)), ") bounds what comes from other ranks, ", alone),
         {left_out("moe.imbalance_limit")});
  expect(ranks > 1 || !moe.static_buffers, "moe.static_buffers", cat("static_buffers are of messages between ranks, ", alone),
         {left_out("moe.static_buffers")});
  expect(!moe.static_buffers || !moe.imbalance_limit, "moe.static_buffers",
         "static_buffers = true, but only counts, of which no rank asks another then, say that imbalance_limit is passed",
         {left_out("moe.static_buffers"), left_out("moe.imbalance_limit")});
  expect(!moe.static_buffers || parallel.dispatcher == Dispatcher::kAllToAll, "moe.static_buffers",
         cat("static_buffers = true with dispatcher = \"", name_of(parallel.dispatcher), "\", whose ranks tell each other which tokens go where"),
         {left_out("moe.static_buffers"), left_out("parallel.dispatcher")});
}

// A layer in rounds computes them once more in W, with parameters that I was the last to need.
void rounds_problems(const RunConfig& config, const Expect& expect) {
  if (!config.moe.imbalance_limit || config.parallel.pp == 1) return;
  const ScheduleKind kind = config.parallel.schedule.kind;
  const bool apart = kind == ScheduleKind::kZbH1 || kind == ScheduleKind::kZbH2 || kind == ScheduleKind::kZbV ||
                     kind == ScheduleKind::kDualPipeV || kind == ScheduleKind::kFile;
  const bool gathered = zero_stage(config) == 3, offloaded = config.memory.offload.has(Offloaded::kParameters);
  expect(!apart || (!gathered && !offloaded), "moe.imbalance_limit",
         cat("beyond imbalance_limit(", number_text(*config.moe.imbalance_limit), ") the weight gradients of schedule ",
             name_of(config.parallel.schedule), " need parameters that ", gathered ? "zero 3" : "offload", " has dropped by then"),
         {left_out("moe.imbalance_limit"), {.changes = {{"parallel.schedule", "1f1b"}}}});
}

// Nodes of equal size, several of them, with several ranks each.
void node_problems(const RunConfig& config, const Expect& expect) {
  const ParallelSection& parallel = config.parallel;
  const int64_t ranks = int64_t{parallel.ep} * parallel.etp, node = parallel.ranks_per_node;
  if (parallel.dispatcher != Dispatcher::kHierarchical) {
    expect(node == 0, "parallel.ranks_per_node",
           cat("ranks_per_node(", node, ") beside dispatcher = \"", name_of(parallel.dispatcher), "\""),
           {left_out("parallel.ranks_per_node"), {.changes = {{"parallel.dispatcher", "hierarchical"}}}});
    return;
  }
  if (ranks == 1) return;
  std::vector<Suggestion> ways;
  for (const Suggestion& way : divisors_near("parallel.ranks_per_node", ranks, node))
    if (way.changes[0].value != "1" && way.changes[0].value != cat(ranks)) ways.push_back(way);
  ways.push_back(dispatcher_left_out(parallel));
  expect(node > 1 && node < ranks && ranks % node == 0, "parallel.ranks_per_node",
         cat("dispatcher = \"hierarchical\" needs several nodes of several ranks, but ep(", parallel.ep, ") x etp(", parallel.etp, ") = ", ranks,
             node == 0 ? " and ranks_per_node is not set" : cat(" and ranks_per_node(", node, ")")),
         ways);
}

}  // namespace

int64_t expert_shards(const RunConfig& config, int world_size) {
  if (zero_stage(config) == 0) return 1;
  const int64_t holders = ranks_of_stage(config, world_size) / (int64_t{config.parallel.ep} * config.parallel.etp);
  return holders / std::gcd<int64_t, int64_t>(data_degrees(config, world_size).replicate, holders);
}

void expert_problems(const RunConfig& config, int world_size, const Expect& expect) {
  if (!config.model.experts) return;  // only the preset says it
  if (*config.model.experts < 1) return unused_key_problems(config, expect), node_problems(config, expect);
  grid_problems(config, world_size, expect);
  scope_problems(config, expect);
  balance_problems(config, expect);
  sharing_problems(config, world_size, expect);
  overlap_problems(config, world_size, expect);
  dispatch_problems(config, expect);
  rounds_problems(config, expect);
  node_problems(config, expect);
}

}  // namespace lockstep::config
