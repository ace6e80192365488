#include "lockstep/program/predict/traffic.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "lockstep/base/check.h"
#include "lockstep/base/text.h"
#include "lockstep/program/effects.h"
#include "lockstep/program/passes/passes.h"
#include "lockstep/program/rank_class.h"

namespace lockstep::program {
namespace {

// The different actions of a list, and how often each is there, whatever the microbatch.
std::vector<std::pair<Action, int64_t>> repeated_actions(const std::vector<Action>& list) {
  std::vector<std::pair<Action, int64_t>> actions;
  std::map<Action, size_t> known;
  for (const Action& action : list) {
    const auto [entry, is_new] = known.try_emplace(without_microbatch(action), actions.size());
    if (is_new) actions.emplace_back(entry->first, 0);
    actions[entry->second].second += 1;
  }
  return actions;
}

// What the rank sends between its layers to mend any of what `lacks` says, and for PULL (of a parameter server).
int64_t sent_for(const Program& program, const Layout& layout, int rank, State lacks) {
  EffectTable effects(layout, program.buckets, rank);
  const auto mends = [&](const Touch& touch) { return (touch.from & ~touch.to & lacks) != 0; };
  const auto wanted = [&](const Action& action) {
    if (of_bucket(action.kind) && !reduces(action.kind)) return true;
    return !computes(action.kind) && std::ranges::any_of(effects.of(action).touches, mends);
  };
  int64_t sent = 0;
  CallTable table(layout, program, rank);
  for (const auto& [action, times] : repeated_actions(program.list(rank)))
    for (size_t i = 0; wanted(action) && i < table.of(action).size(); ++i) {
      const CallOfRank planned = call_of_rank(layout, rank, table.of(action)[i]);
      sent += times * predicted_bytes(planned.call, planned.group_rank);
    }
  return sent;
}

// Id, collective, axis and algorithm; size of the group; whether this rank is its root: calls and bytes of each.
using CallKinds = std::map<std::tuple<LedgerKey, int, bool>, std::pair<int64_t, int64_t>>;

CallKinds call_kinds(const Program& program, const Layout& layout, int rank, bool numbered) {
  CallKinds kinds;
  CallTable table(layout, program, rank);  // no list of a group's ranks is made
  for (const auto& [action, times] : repeated_actions(program.list(rank))) {
    if (differs_by_shard(layout, action)) continue;
    for (const PlannedCall& planned : table.of(action)) {
      const bool has_root = planned.collective == Collective::kBroadcast || planned.collective == Collective::kReduce;
      const bool root = has_root && planned.root == group_rank(layout, rank, planned.group);
      const LedgerKey key{.id = numbered ? planned.id : planned.id.of_every_owner(),
                          .collective = planned.collective,
                          .axis = group_name(layout, planned.group),
                          .algorithm = planned.algorithm};
      auto& [count, bytes] = kinds[{key, group_size(layout, planned.group), root}];
      count += times;
      bytes += times * planned.bytes();
    }
  }
  return kinds;
}

int64_t gathers(const Layout& layout) {
  if (layout.zero < 3) return 1;
  const int64_t microbatches = layout.num_microbatches();
  const bool stays = !layout.reshard_after_forward && (layout.pipeline.ranks == 1 || !layout.reshard_after_microbatch);
  if (stays) return layout.reshard_after_microbatch ? microbatches : 1;
  return layout.reshard_after_microbatch ? 2 * microbatches : microbatches + 1;
}

}  // namespace

std::vector<std::vector<int>> alike_ranks(const Program& program, const Layout& layout, const std::vector<int>& ranks,
                                          bool numbered) {
  // Ranks of one class make the same calls, but for their shard. Along tp the rows of what goes between stages may differ.
  const RankClasses classes(program, layout);
  const bool equal_rows = layout.micro_batch * layout.tokens_here() % layout.mesh.degree(mesh::Axis::kTp) == 0;
  std::map<CallKinds, size_t> known;
  std::vector<std::optional<size_t>> of_class(classes.count());
  std::vector<std::vector<int>> groups;
  for (const int rank : ranks) {
    std::optional<size_t>& group = of_class[equal_rows ? classes.row_of(rank) : classes.of(rank)];
    if (!group) group = known.try_emplace(call_kinds(program, layout, rank, numbered), groups.size()).first->second;
    if (*group == groups.size()) groups.emplace_back();
    groups[*group].push_back(rank);
  }
  return groups;
}

std::vector<int> stage_ranks(const Layout& layout) { return layout.mesh.group(0, mesh::Axis::kPp); }

int64_t parameters_of(const Layout& layout, int rank) {
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(rank)) here += spec.local_numel();
  return here;
}

namespace {

int64_t experts_of(const Layout& layout, int rank) {
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(rank))
    if (spec.group == arch::ParameterGroup::kExperts) here += spec.local_numel();
  return here;
}

// (S - 1) / S of the parameters, by how many ranks share out those of experts and all else.
double gathered_share(const Layout& layout, int rank) {
  const int64_t experts = experts_of(layout, rank);
  const auto share = [](int shards, int64_t numel) { return (shards - 1.0) / shards * static_cast<double>(numel); };
  const double dense = share(layout.shards(), parameters_of(layout, rank) - experts);
  return experts == 0 ? dense : dense + share(layout.shards(arch::ParameterGroup::kExperts), experts);
}

// What a gather, or a reduction, sends of what is used in fp32, for each byte of an element.
double fp32_share(const Layout& layout, int rank) {
  constexpr arch::ParameterGroup kFp32 = arch::ParameterGroup::kFp32;
  int64_t here = 0;
  for (const arch::ParamSpec& spec : layout.param_table(rank))
    if (spec.group == kFp32) here += spec.local_numel();
  const int shards = layout.shards(kFp32);
  return (shards - 1.0) / shards * static_cast<double>(here);
}

// An all-reduce of one shard's gradients of a group over those that hold the same.
double copies_bytes(const Layout& layout, arch::ParameterGroup group, int64_t numel) {
  const double copies = layout.mesh.degree(layout.domain(group).copies);
  return 2 * (copies - 1) / copies * 4 * static_cast<double>(numel) / layout.shards(group);
}

}  // namespace

std::vector<ReductionTraffic> reduction_traffic(const Layout& layout, const std::vector<int>& ranks) {
  const int n = layout.mesh.degree(layout.tokens());
  Layout ring = layout, server = layout;
  ring.zero = server.zero = 0;
  ring.offload = server.offload = {};
  ring.data_parallel = config::DataParallel::kRing;
  server.data_parallel = config::DataParallel::kParameterServer;
  const Program reduces = make_program(ring), pushes = make_program(server);
  std::vector<ReductionTraffic> traffic;
  for (const int rank : ranks) {
    // Every link of the ring carries what its rank sends; the workers of a server are all alike.
    const std::vector<int> group = layout.mesh.group(rank, layout.tokens());
    const int worker = group[n > 1 ? kServerRank + 1 : kServerRank];
    traffic.push_back({.ring_link = sent_for(reduces, ring, rank, kPartOfTokens),
                       .server_link = (n - 1) * sent_for(pushes, server, worker, kPartOfTokens) +
                                      sent_for(pushes, server, group[kServerRank], kPartOfTokens)});
  }
  return traffic;
}

std::vector<std::vector<StageTraffic>> sharding_traffic(const Layout& layout, const std::vector<int>& ranks) {
  LOCKSTEP_CHECK(layout.shards() > 1, "one shard: nothing is gathered");
  constexpr arch::ParameterGroup kFp32 = arch::ParameterGroup::kFp32;
  const auto wire = static_cast<double>(config::bytes_of(layout.reduce_precision));
  const double wire_beyond = static_cast<double>(config::bytes_of(layout.reduce_precision_of(kFp32))) - wire;
  const auto gather_beyond = static_cast<double>(layout.element_size(kFp32) - layout.element_size());
  std::vector<std::vector<StageTraffic>> of_ranks(ranks.size());
  for (int zero : {1, 2, 3}) {
    Layout staged = layout;
    staged.zero = zero;
    staged.offload.parameters = layout.offload.parameters && zero == 3;
    staged.overlap_experts = false;  // the same calls in another order
    const Program program = make_program(staged);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const double share = gathered_share(layout, ranks[i]), of_fp32 = fp32_share(layout, ranks[i]);
      StageTraffic stage{.zero = zero};
      stage.gathers = gathers(staged);
      stage.reduces = staged.transient_gradients() && !staged.reduces_once() ? layout.num_microbatches() : 1;
      stage.formula_bytes = share * (static_cast<double>(stage.gathers * layout.element_size()) +
                                     static_cast<double>(stage.reduces) * wire) +
                            of_fp32 * (static_cast<double>(stage.gathers) * gather_beyond + static_cast<double>(stage.reduces) * wire_beyond);
      stage.predicted_bytes = sent_for(program, staged, ranks[i], kShardOnly | kPartOfTokens);
      of_ranks[i].push_back(stage);
    }
  }
  return of_ranks;
}

ReplicaTraffic replica_traffic(const Program& program, const Layout& layout, int rank) {
  const int64_t experts = experts_of(layout, rank);
  double bytes = copies_bytes(layout, arch::ParameterGroup::kDense, parameters_of(layout, rank) - experts);
  if (experts > 0 && layout.shards(arch::ParameterGroup::kExperts) > 1) bytes += copies_bytes(layout, arch::ParameterGroup::kExperts, experts);
  return {.formula_bytes = bytes,
          .predicted_bytes = sent_for(program, layout, rank, kPartOfCopies)};
}

Ledger predict_ledger(const Layout& layout, const Program& program, int rank) {
  Ledger ledger;
  for (const RepeatedCalls& repeated : repeated_calls(layout, program, rank))
    for (const CallOfRank& planned : repeated.calls)
      ledger.add(planned.key, payload(planned.call), predicted_sends(planned.call, planned.group_rank), repeated.times,
                 planned.at_run_time);
  return ledger;
}

std::vector<RepeatedCalls> repeated_calls(const Layout& layout, const Program& program, int rank) {
  CallTable table(layout, program, rank);
  std::vector<RepeatedCalls> calls;
  for (const auto& [action, times] : repeated_actions(program.list(rank))) {
    RepeatedCalls& of_action = calls.emplace_back(RepeatedCalls{.action = action, .times = times});
    for (const PlannedCall& planned : table.of(action)) of_action.calls.push_back(call_of_rank(layout, rank, planned));
  }
  return calls;
}

double ring_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) / ranks * gradient_bytes;
}

double server_link_bytes(double gradient_bytes, int ranks) {
  return 2.0 * (ranks - 1) * gradient_bytes;
}

}  // namespace lockstep::program
